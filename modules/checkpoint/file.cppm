// Files of this module: mapped for reading; written with a check of every system call.
module tessera.checkpoint:file;

import tessera.base;

namespace tessera::checkpoint_detail {

/// A file's bytes, read-only, for the lifetime of the object. Truncating a mapped file kills the
/// processes that read it (SIGBUS); checkpoints are therefore replaced as whole folders.
class MappedFile {
 public:
  /// Error (input): no such file, not a regular file, not readable.
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A new file. Every function can throw an Error with the file's name and the system's reason.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();
  void write(std::uint64_t at, std::span<const std::byte> bytes);
  /// Returns when all bytes are on the disk.
  void finish();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// Marks a folder as in use. The system releases the lock when the process ends, however it ends.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();
  /// Also false where the file system has no locks.
  bool held() const { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

/// Returns when the names that were created or changed in the folder are on the disk.
void sync_folder(const std::string& folder);
/// The folder that contains `path`; "." for a bare name.
std::string parent_of(const std::string& path);
/// Renames the folder `fresh` to `folder` in one step, and removes the folder that had that name.
void put_in_place(const std::string& fresh, const std::string& folder);

}  // namespace tessera::checkpoint_detail
