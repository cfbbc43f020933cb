// The parts that a data file of a checkpoint has, from its own header.
module tessera.checkpoint:parts;

import tessera.base;
import tessera.placement;
import :index;
import :safetensors;

namespace tessera::checkpoint_detail {

/// A box of a tensor that is a whole tensor of a safetensors file.
struct StoredPart {
  std::string key;
  LocalPart box;
  std::vector<std::string> hashes;                // of each chunk of its bytes
  std::unique_ptr<std::atomic<bool>[]> compared;  // which chunks had their hash
};

/// A data file of a checkpoint.
struct PartFile {
  explicit PartFile(SafetensorsFile opened) : file(std::move(opened)) {}
  SafetensorsFile file;
  std::map<std::string, std::vector<StoredPart>> parts;  // by tensor
};

/// Opens a file once its size and its header are known to be those that were saved. Error (input):
/// they are not; a part that is not of a tensor of the index, or has no hashes.
std::unique_ptr<PartFile> open_parts(const std::string& path, const StoredFile& expected,
                                     const IndexedTensors& tensors);

/// The first chunk among [first, last] of a part that does not have its hash; nothing when all do.
std::optional<std::size_t> damaged_chunk(const PartFile& file, const StoredPart& part,
                                         std::size_t first, std::size_t last);

}  // namespace tessera::checkpoint_detail
