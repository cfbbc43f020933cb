// Files as this module needs them: mapped for reading; for writing with every step checked.
module tessera.checkpoint:file;

import tessera.base;

namespace tessera::checkpoint_detail {

/// A file's bytes, read-only, as long as the object lives. Who cuts a file that others have mapped
/// kills them; checkpoints are therefore replaced as whole folders.
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

/// A new file. Error of every function: what the system said, with the file's name.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();
  void write(std::uint64_t at, std::span<const std::byte> bytes);
  /// All is on the disk when this returns.
  void finish();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// Holds a folder as in use; the system lets go when the process ends, however it ends.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();
  /// False also where the file system has no locks.
  bool held() const { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

/// Names that were made or changed in the folder are on the disk when this returns.
void sync_folder(const std::string& folder);
/// The folder that `path` lies in; "." for a bare name.
std::string parent_of(const std::string& path);
/// Puts the folder `fresh` in the place of `folder`, in one step, and removes what was there.
void put_in_place(const std::string& fresh, const std::string& folder);

}  // namespace tessera::checkpoint_detail
