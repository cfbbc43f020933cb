export module tessera.checkpoint:save_without_data;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :source;

export namespace tessera {

/// A tensor of a simulated save.
struct SimulatedTensor {
  TensorInfo info;
  Layout layout;  // on a mesh of the simulated ranks
};

/// Writes the checkpoint that `ranks` ranks would write of tensors whose values are all zero, in
/// this process alone: the real plan, headers, hashes and index. The data is not written; the files
/// have holes of its size. To measure and to test planning at sizes that no machine at hand has.
/// Error (input): `folder` exists.
void save_without_data(const std::string& folder,
                       const std::map<std::string, SimulatedTensor>& tensors, int ranks);

}  // namespace tessera
