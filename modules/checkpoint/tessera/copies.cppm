export module tessera.checkpoint:copies;

import tessera.base;
import tessera.tensor;

export namespace tessera {

/// Compares, by hashes of their bits, the parts of tensors that several ranks hold. All ranks of
/// the world call it together, each with its own tensors. Error, on the ranks that hold it: a part
/// differs; it names the tensor and the ranks whose copy differs from most others.
void check_copies(const StateDict& state);

}  // namespace tessera
