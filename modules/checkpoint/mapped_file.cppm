// Files of this module: mapped for reading; written with a check of every system call.
module tessera.checkpoint:mapped_file;

import tessera.base;
import :file_bytes;
import :mapping;

namespace tessera::checkpoint_detail {

/// A file's bytes, read-only, for the lifetime of the object. Bytes that the file loses meanwhile
/// read as zeros: call check_intact() after reading and before using what was read.
class MappedFile : public FileBytes {
 public:
  /// Error (input): no such file, not a regular file, not readable.
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() override;
  std::span<const std::byte> bytes() const override { return {data_, size_}; }
  /// Error (input) that names the file and its sizes: bytes that were read since the object was
  /// made were not there, because another program truncated the file or the disk failed.
  void check_intact() const override;
  /// Pages that these bytes fill may leave this process' memory; they are mapped again when they
  /// are read.
  void drop(std::span<const std::byte> bytes) const override;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::optional<WatchedRange> watched_;
};

/// The first bytes of a file, at most `count`. The system reads nothing ahead, as it does for a
/// mapped file, where a header of some KiB would cost MiB of values. Error (input): as MappedFile.
std::string read_front(const std::string& path, std::size_t count);

/// A new file. Every function can throw an Error with the file's name and the system's reason.
class OutputFile {
 public:
  /// `shared`: other ranks may have made it, and write other bytes of it.
  explicit OutputFile(std::string path, bool shared = false);
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

/// Returns when the names that were created or changed in the folder are on the disk.
void sync_folder(const std::string& folder);
/// The folder that contains `path`; "." for a bare name.
std::string parent_of(const std::string& path);
/// Renames the folder `fresh` to `folder` in one step, and removes the folder that had that name.
void put_in_place(const std::string& fresh, const std::string& folder);

}  // namespace tessera::checkpoint_detail
