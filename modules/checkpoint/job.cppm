// What one save writes, apart from when and in which thread it does.
module tessera.checkpoint:job;

import tessera.base;
import tessera.collective;
import tessera.placement;
import tessera.tensor;
import :index;
import :save;

namespace tessera::checkpoint_detail {

/// A tensor of a save.
struct SavedTensor {
  TensorInfo info;
  std::string layout;            // for people
  std::optional<LocalPart> own;  // the box that this rank writes; not empty
  Tensor values;                 // of that box: a plain tensor, on any device
};

struct SaveJob {
  std::string folder;
  std::map<std::string, SavedTensor> tensors;
  std::map<std::string, StateDict::Scalar> scalars;
  std::string meta_data;
  SaveOptions options;
};

/// The box of a tensor that this rank must write; nothing when another rank writes it or it is
/// empty. Error: the tensor is Partial.
std::optional<LocalPart> part_to_write(const std::string& name, const Tensor& tensor, int rank);

/// The values are those of the state itself: no copies. Error: a tensor that is Partial or has no
/// memory.
SaveJob make_job(const std::string& folder, const StateDict& state, const std::string& meta_data,
                 const SaveOptions& options, int rank);

/// Writes it. All ranks of `group` (all of the world) call it in a thread that acts as the rank,
/// and nobody else may use `group` meanwhile. `make` makes the rank's job; an error of it is the
/// error of all ranks, as is any other.
void run_job(collective::Communicator& group, const std::function<SaveJob()>& make);

/// A tensor's elements, one after the other, on the host.
Tensor packed(const Tensor& tensor);
std::span<const std::byte> bytes_of(const Tensor& packed);

}  // namespace tessera::checkpoint_detail
