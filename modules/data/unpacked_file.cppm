module tessera.data:unpacked_file;

import tessera.base;
import :data_file;

// The content of packed files by position: of compressed ones, and of those that a source reads.

namespace tessera::data {

/// The content of a packed file, from its beginning to its end.
class ContentReader {
 public:
  virtual ~ContentReader();
  /// Fills `out` from its beginning on; returns how many bytes there were: fewer than `out` has
  /// only at the end. Errors (input) that name the file.
  virtual std::size_t read(std::span<std::byte> out) = 0;
  /// The share of the file that was read.
  virtual double done() const = 0;
};

/// How the content of a file is found.
struct FilePacking {
  /// What decides besides the file what its content is; empty: nothing.
  std::string version = {};
  std::function<std::unique_ptr<ContentReader>()> open = {};  // empty: the file is read as it is
};
/// By the end of the file's name: ".gz" and ".zst" are unpacked; what a plugin of the kind "source"
/// reads becomes lines of JSON. Errors (input): the plugin is refused, or is not there.
FilePacking packing_of(const std::string& path);
/// Whether a file has records by its name alone, and is no text: a source reads it.
bool is_of_source(const std::string& path);
/// A file of plain text, or its content. Errors (input): those of DataFile; it has records.
DataFile text_file(const std::string& path);

/// What is in a packed file, with random access: its content in blocks, each compressed for itself,
/// in a file of the cache (TESSERA_DATA_CACHE, or ~/.cache/tessera/data). That file is made once,
/// by one of the processes that need it, and goes away when no run has read it for 30 days.
class UnpackedFile {
 public:
  /// Errors (input): those of the packing; the cache cannot be used, or has no room.
  UnpackedFile(const std::string& path, const FilePacking& packing, const FileIdentity& identity);

  /// Bytes of the content.
  std::size_t size() const { return size_; }

 private:
  std::string path_;  // of the packed file
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
