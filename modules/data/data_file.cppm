export module tessera.data:data_file;

import tessera.base;

// A file that a run reads from its start to its end, and that must not change meanwhile.

namespace tessera::data {

class UnpackedFile;
class UnpackedReader;

}  // namespace tessera::data

export namespace tessera::data {

/// What tells a file apart from a later version of it.
struct FileIdentity {
  std::size_t size = 0;  // bytes
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t modified_seconds = 0;
  std::int64_t modified_nanoseconds = 0;
  std::int64_t changed_seconds = 0;  // its content, its mode, or one of its names
  std::int64_t changed_nanoseconds = 0;
};

/// Reads by position, without a mapping: a mapped file that another program truncates kills the
/// reader (SIGBUS). The file is open only while `Handle`s of it exist, so that a run can read more
/// files than a process may have open.
class DataFile {
 public:
  /// Throws Error (input) when the file is missing, cannot be read or is not a regular file.
  explicit DataFile(std::string path);
  /// What is in a file whose name ends in ".gz" or ".zst", the records of a file that a plugin of
  /// the kind "source" reads as lines of JSON, and any other file as it is. The first two are
  /// unpacked once, into blocks in a file of the cache (docs/compressed-data.md). Errors (input):
  /// as above; it is not compressed so, or damaged; it changed meanwhile; the plugin is not there;
  /// the cache cannot be used.
  static DataFile content_of(std::string path);

  const std::string& path() const { return path_; }
  /// Bytes of the content.
  std::size_t size() const { return size_; }

  /// The file, open.
  class Handle {
   public:
    explicit Handle(const DataFile& file);
    Handle(Handle&& other) noexcept;
    Handle& operator=(Handle&& other) noexcept;
    ~Handle();
    /// Fills `out` with the bytes from `offset` on. Error (input) that names the file when it has
    /// changed since the DataFile was made: truncated, written to, or replaced.
    void read(const DataFile& file, std::size_t offset, std::span<std::byte> out) const;

   private:
    int descriptor_ = -1;
    std::unique_ptr<UnpackedReader> unpacked_;  // null: the file is read as it is
  };

 private:
  void check_unchanged(int descriptor) const;

  std::string path_;
  FileIdentity identity_;
  std::size_t size_ = 0;
  std::shared_ptr<const UnpackedFile> unpacked_;  // null: the file is read as it is
};

/// Calls `take` with the bytes before `end`, piece by piece. Errors (input): those of Handle::read.
void for_each_piece(const DataFile& file, std::size_t end,
                    const std::function<void(std::span<const std::byte>)>& take);

}  // namespace tessera::data
