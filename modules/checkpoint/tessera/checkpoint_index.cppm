// checkpoint.json: the tensors and their layouts, the files and the ranks that wrote them.
module tessera.checkpoint:checkpoint_index;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :source;

namespace tessera::checkpoint_detail {

inline constexpr const char* index_name = "checkpoint.json";

struct IndexedTensor {
  TensorInfo info;
  Layout layout;  // when it was saved: it says which rank's file has which box; none: plain
};
using IndexedTensors = std::map<std::string, IndexedTensor>;

/// A file of a checkpoint, as the index lists it; its content is in its own header.
struct StoredFile {
  std::uint64_t bytes = 0;
  std::string header;      // hash of the header: its length and its JSON
  std::vector<int> ranks;  // whose parts it has
};

struct CheckpointIndex {
  IndexedTensors tensors;
  std::map<std::string, StateDict::Scalar> scalars;
  std::map<std::string, StoredFile> files;
  std::string meta = "{}";  // JSON of the program that saves
  std::shared_ptr<const CheckpointBase> base = {};
};

/// "[Shard(0)] on mesh(shard=2)", or "plain".
std::string layout_text(const Layout& layout);

/// "1,0", and back; nothing for any other text.
std::string dims_text(const Dims& dims);
std::optional<Dims> dims_from_text(std::string_view text);

/// Begins with the hash of all that follows it.
/// Error (run): a text is not UTF-8. Error (input): meta is not a JSON object.
std::string to_json(const CheckpointIndex& index);
/// Error (input) that begins with `path` and names the field: wrong JSON, another version, a text
/// that does not have its hash, values of a wrong type or out of range.
CheckpointIndex index_from_json(const std::string& text, const std::string& path);
/// Reads the index from a file of this machine; Error (input), too, when it cannot be read or is
/// too large.
CheckpointIndex read_index(const std::string& path);

/// Tensors that all ranks save, from those of each of them, by rank. Error: they disagree about a
/// tensor, or a rank lacks one that its layout cuts over this rank.
IndexedTensors merged(const std::vector<IndexedTensors>& of_ranks, const std::string& path);

}  // namespace tessera::checkpoint_detail
