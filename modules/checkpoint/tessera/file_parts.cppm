// Which rank writes which box into which file: a function of names, shapes and layouts alone.
module tessera.checkpoint:save_plan;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :checkpoint_index;
import :source;

namespace tessera::checkpoint_detail {

/// A box that one rank writes.
struct FilePart {
  std::string name;        // of its tensor
  std::size_t tensor = 0;  // the tensor's number, in the order of names
  DType dtype = DType::f32;
  LocalPart box;
  int writer = 0;
  std::uint64_t begin = 0;  // of its bytes, in the file's data

  std::size_t bytes() const {
    return static_cast<std::size_t>(box.shape.product()) * size_of(dtype);
  }
};

struct CheckpointFile {
  std::string name;
  std::vector<int> ranks;       // that write it
  std::vector<FilePart> parts;  // in the order of their bytes; empty: there is no such file
};

/// "NAME@1,0": the name that a part has in its file.
std::string key_of(const std::string& name, const Dims& offset);

/// The ranks, in groups that write one file each. Ranks that hold copies of a tensor are in one
/// group, so that on the same mesh a rank finds all its parts in one file; but not where a tensor
/// that is a small part of all would bring more than 16 ranks together.
std::vector<std::vector<int>> file_groups(const IndexedTensors& tensors, int ranks);

/// The file of a group. What several ranks of it hold is cut, or given to one of them in turn, so
/// that all of them write about equally many bytes. A tensor whose copies are in several groups is
/// in the file of the copy with the lowest coordinates.
CheckpointFile plan_file(const IndexedTensors& tensors, const std::vector<int>& group);

/// As plan_file, of everything that these ranks hold, wherever other ranks have copies of it.
CheckpointFile plan_holdings(const IndexedTensors& tensors, const std::vector<int>& ranks);

/// The rank whose file has what `rank` holds; nothing when the rank holds nothing of it.
std::optional<int> keeper_of(const Layout& layout, int rank);

/// The header (length and JSON, with the table of parts) of a file whose parts have these hashes;
/// its size does not depend
/// on them.
std::string header_of(const CheckpointFile& file,
                      const std::vector<std::vector<std::string>>& hashes);
/// The size of the header.
std::size_t header_bytes(const CheckpointFile& file);

}  // namespace tessera::checkpoint_detail
