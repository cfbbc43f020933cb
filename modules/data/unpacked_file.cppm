module tessera.data:unpacked_file;

import tessera.base;
import :data_file;
import :unpacker;

// The content of compressed files by position.

namespace tessera::data {

/// What is in a compressed file, with random access: its content in blocks, each compressed for
/// itself, in a file of the cache (TESSERA_DATA_CACHE, or ~/.cache/tessera/data). That file is
/// made once, by one of the processes that need it, and goes away when no run has read it for 30
/// days.
class UnpackedFile {
 public:
  /// Errors (input): those of Unpacker; the cache cannot be used, or has no room.
  UnpackedFile(const std::string& path, Compression compression, const FileIdentity& identity);

  /// Bytes of the content.
  std::size_t size() const { return size_; }

 private:
  std::string path_;  // of the compressed file
  std::string kept_;  // of the cache's
  std::size_t size_ = 0;
  std::vector<std::uint64_t> begins_;  // of each block in the cache's file, and the end

  friend class UnpackedReader;
};

/// The cache's file of an UnpackedFile, which outlives it, open; with the block that was read last.
class UnpackedReader {
 public:
  /// Error (input): it is no longer there.
  explicit UnpackedReader(const UnpackedFile& file);
  UnpackedReader(const UnpackedReader&) = delete;
  UnpackedReader& operator=(const UnpackedReader&) = delete;
  ~UnpackedReader();
  /// Bytes [offset, offset + out.size()) of the content. Error (input): a block is damaged.
  void read(std::size_t offset, std::span<std::byte> out);

 private:
  std::span<const std::byte> block(std::size_t which);

  const UnpackedFile& file_;
  int descriptor_ = -1;
  std::size_t which_ = 0;
  std::vector<std::byte> block_;
  std::vector<std::byte> packed_;
};

}  // namespace tessera::data
