export module tessera.machines:run_key;

import tessera.base;

export namespace tessera::collective {

/// A secret that the processes of a run share, or one that is derived from it.
class RunKey {
 public:
  static constexpr std::size_t size = 32;  // bytes
  using Bytes = std::array<unsigned char, size>;

  explicit RunKey(const Bytes& bytes) : bytes_(bytes) {}
  static RunKey random();
  /// Of 64 hexadecimal digits. Error (input), about `thing` and without the text: it is something
  /// else.
  static RunKey parse(const std::string& thing, std::string_view text);
  std::string text() const;
  /// Another key, which says nothing about this one.
  RunKey derived(std::string_view purpose) const;
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

/// The key in a file of this user that no other user may read. Nothing: there is no such file.
/// Error (input): the file is a link or no regular file, belongs to another user, may be read by
/// others, or has no key.
std::optional<RunKey> read_key_file(const std::string& path);
/// The same; where there is no such file, makes it with a random key. It appears complete, and only
/// one of several processes makes it.
RunKey make_key_file(const std::string& path);

/// Who looks for the key of a run.
struct KeyRequest {
  std::string host;    ///< at which the processes meet
  bool first = false;  ///< machine 0 or rank 0: makes a key that is missing
  bool tells = false;  ///< and prints one that nobody could know, to start the others with it
};
/// The run's key: what hold_run_key was called with, or the first of TESSERA_KEY, the file
/// TESSERA_KEY_FILE (for which others than the first one wait), where all are on this machine
/// (`host` is localhost or an address of it) a file of this user, and a random one that is printed.
/// It is held from then on. Error (input): there is none, or it cannot be read.
RunKey run_key(const KeyRequest& request);
/// The key of this process and of those that it forks, from here on.
void hold_run_key(const RunKey& key);
/// Takes TESSERA_KEY out of the environment, which programs that this one starts get, and holds it.
void hide_run_key();

}  // namespace tessera::collective
