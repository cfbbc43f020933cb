// checkpoint.json: which part of which tensor is in which file, and the hashes of all bytes.
module tessera.checkpoint:index;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :source;

namespace tessera::checkpoint_detail {

inline constexpr const char* index_name = "checkpoint.json";

/// A box of a tensor that is a whole tensor of a safetensors file.
struct StoredPart {
  std::string file;
  std::string key;
  LocalPart box;
  std::vector<std::string> hashes;  // of each chunk of its bytes; the last one may be shorter
};

/// What the index knows of a file.
struct StoredFile {
  std::uint64_t bytes = 0;
  std::string header;  // hash of the header: its length and its JSON
};

struct IndexedTensor {
  TensorInfo info;
  std::string layout;             // when it was saved; for people
  std::vector<StoredPart> parts;  // none of them empty
};

struct CheckpointIndex {
  std::map<std::string, IndexedTensor> tensors;
  std::map<std::string, StateDict::Scalar> scalars;
  std::map<std::string, StoredFile> files;
  std::string meta = "{}";  // JSON of the program that saves
};

/// Ends with the index's own hash.
/// Error (run): a text is not UTF-8. Error (input): meta is not a JSON object.
std::string to_json(const CheckpointIndex& index);
/// Error (input) that begins with `path` and names the field: wrong JSON, another version, a text
/// that does not have its hash, values of a wrong type or out of range.
CheckpointIndex index_from_json(const std::string& text, const std::string& path);
/// The same for a file; Error (input), too, when it cannot be read or is too large.
CheckpointIndex read_index(const std::string& path);
/// Adds the parts that another rank wrote; of equal parts the first one is kept. Error: the ranks
/// disagree about a tensor.
void merge(CheckpointIndex& into, CheckpointIndex from, const std::string& path);
/// Error (input) that names the tensor whose parts overlap, leave gaps or are outside of it.
void check_coverage(const CheckpointIndex& index, const std::string& path);

}  // namespace tessera::checkpoint_detail
