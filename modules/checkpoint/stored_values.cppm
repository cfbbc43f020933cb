// Checks of stored values, besides their names and shapes.
module tessera.checkpoint:stored_values;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :source;

namespace tessera::checkpoint_detail {

/// Error (input) that begins with `what` and names the first element that is NaN or infinite;
/// `values` is the box from `offset` on of a whole tensor. Integers pass.
void check_finite(const Tensor& values, const Dims& offset, const std::string& what);

/// Calls f(box) for boxes of whole rows, about a million elements each, that fill a tensor.
void for_each_block(const Dims& shape, const std::function<void(const LocalPart&)>& f);

/// Reads all that `state` would load, and throws the error of check_finite for the first value that
/// is NaN or infinite in the type that it would be loaded as.
void check_stored_finite(const TensorSource& from, const StateDict& state,
                         const std::string& prefix);

/// Names of a state that are one tensor (tied parameters) must not have different values in the
/// files: all but one of them would be lost. Error (input) that names both.
void check_tied(const TensorSource& from, const StateDict& state, const std::string& prefix);

}  // namespace tessera::checkpoint_detail
