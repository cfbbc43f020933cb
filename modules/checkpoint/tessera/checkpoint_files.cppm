// The files of a saved checkpoint: in a folder of this machine, or in a store.
module tessera.checkpoint:checkpoint_files;

import tessera.base;
import :file_bytes;

namespace tessera::checkpoint_detail {

/// Bytes of a file that can be read while `owner` lives.
struct LoadedBytes {
  std::shared_ptr<const FileBytes> owner;
  std::span<const std::byte> bytes;
};

/// A file of a checkpoint, of which any range can be read. Errors (input) of its functions name the
/// file: it cannot be read, or has changed. Safe to call from several threads.
class DataFile {
 public:
  virtual ~DataFile();
  virtual std::uint64_t size() const = 0;
  /// Its first bytes, at most `count`.
  virtual std::string front(std::size_t count) const = 0;
  /// The bytes [begin, begin + count), of which only [first, last) will be read.
  virtual LoadedBytes load(std::uint64_t begin, std::size_t count, std::size_t first,
                           std::size_t last) const = 0;
  /// Whether two loads of a range give the same memory, so that a hash which was compared holds for
  /// the next one.
  virtual bool stays() const = 0;
  /// Where programs that take a file find it; nothing where there is no such place.
  virtual std::optional<std::string> local_path() const = 0;
};

/// The files of one checkpoint.
class CheckpointFiles {
 public:
  virtual ~CheckpointFiles();
  /// `place`: a path or an address. Errors (input): an address of a wrong form, no plugin for it.
  static std::unique_ptr<CheckpointFiles> at(const std::string& place);

  /// Whether there is an index. Error: a store cannot say so.
  virtual bool has_index() const = 0;
  /// The index' text. Error (input): it cannot be read, or is too large.
  virtual std::string index_text() const = 0;
  /// A file's place, for errors.
  virtual std::string path_of(const std::string& name) const = 0;
  /// Bytes of a file of this name, or why they are not known.
  struct Size {
    std::uint64_t bytes = 0;
    std::string problem = {};
  };
  virtual Size size_of(const std::string& name) const = 0;
  virtual std::unique_ptr<DataFile> open(const std::string& name) const = 0;
};

}  // namespace tessera::checkpoint_detail
