export module tessera.base:file_lock;

import :standard;
import :waiting;

export namespace tessera {

/// A lock on a file or a folder, which one process has at a time. The system releases it when that
/// process ends, however it ends. A link at the end of the path is not followed, and a pipe of that
/// name blocks nobody.
class FileLock {
 public:
  enum class State : std::uint8_t {
    free,         ///< not taken
    held,         ///< this object has it
    busy,         ///< another process has it, or another object of this one: holder()
    unusable,     ///< it cannot be opened, or is not a plain file (not a folder): problem()
    unsupported,  ///< the file system has no locks: problem()
  };

  /// take() makes the file where there is none, with this mode.
  static FileLock of_file(std::string path, unsigned mode = 0600);
  static FileLock of_folder(std::string path);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  /// Releases it; the file stays.
  ~FileLock();

  /// Takes it if nobody has it. Never waits.
  State take();
  /// Waits while another process has it, at most as long as `patience`: busy after that. `what` is
  /// the name of the lock in the report, `then` what happens after the limit (Patience::look).
  State take(Patience& patience, std::string_view what, std::string_view then);

  inline bool is_held() const { return state_ == State::held; }
  inline const std::string& path() const { return path_; }
  /// Why it is unusable or unsupported, in a few words.
  inline const std::string& problem() const { return problem_; }
  /// The text that the process that has it wrote by sign(), else "another process".
  inline const std::string& holder() const { return holder_; }

  /// Writes who has it into the file that is held: "process 7 on HOST, since TIME". "", or why not.
  std::string sign();
  /// Removes the file that is held, and releases it.
  void remove();
  /// In a process that was forked from the holder: closes it without releasing it.
  void leave_to_owner();

 private:
  FileLock(std::string path, unsigned mode, bool folder)
      : path_(std::move(path)), mode_(mode), folder_(folder) {}
  int open_file();
  State refuse(State state, std::string problem);

  std::string path_;
  unsigned mode_;
  bool folder_;
  int descriptor_ = -1;
  State state_ = State::free;
  std::string problem_;
  std::string holder_;
};

}  // namespace tessera
