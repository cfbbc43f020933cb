// The parts that a data file of a checkpoint has, from the table in its own header.
module tessera.checkpoint:parts;

import tessera.base;
import tessera.placement;
import :checkpoint_files;
import :checkpoint_index;

namespace tessera::checkpoint_detail {

/// The tensors of an index, in the order of their names: a table has their numbers.
using NumberedTensors = std::vector<const IndexedTensors::value_type*>;

/// A box of a tensor whose bytes are one after the other in a file.
struct StoredPart {
  std::size_t tensor = 0;  // its number
  LocalPart box;
  std::uint64_t begin = 0;  // of its bytes, in the file
  std::size_t bytes = 0;
  std::string_view hashes;      // 32 digits for each chunk, in the file's header
  std::size_t first_chunk = 0;  // the number of its first chunk, among all of the file
};

/// A data file of a checkpoint.
struct PartFile {
  PartFile(std::unique_ptr<DataFile> file, std::string header)
      : file(std::move(file)), header(std::move(header)) {}
  std::unique_ptr<DataFile> file;
  std::string header;                             // its length and its JSON
  std::vector<StoredPart> parts;                  // in the order of their tensors
  std::unique_ptr<std::atomic<bool>[]> compared;  // which chunks had their hash
  std::atomic<std::uint64_t> bytes_read{0};

  std::span<const StoredPart> of(std::size_t tensor) const;
};

/// Opens a file once its size and its header are known to be those that were saved. Only the table
/// in the header is parsed. Error (input): they are not; the table is wrong, or has a part that is
/// not of a tensor of the index or has no hashes.
std::unique_ptr<PartFile> open_parts(const std::string& path, std::unique_ptr<DataFile> file,
                                     const StoredFile& expected, const NumberedTensors& tensors);

/// Error (input): the tensors in the file's header, which other programs read, are not the parts of
/// its table. Only where such programs find it (DataFile::local_path).
void check_header(const std::string& path, const PartFile& file, const NumberedTensors& tensors);

/// The bytes of a part, of which the chunks [first, last] can be read; and the first of them that
/// does not have its hash, if there is one.
struct ComparedPart {
  LoadedBytes loaded;
  std::optional<std::size_t> damaged;
};
ComparedPart load_part(const PartFile& file, const StoredPart& part, std::size_t first,
                       std::size_t last);

}  // namespace tessera::checkpoint_detail
