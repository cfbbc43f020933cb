module tessera.nn:whole_sums;

import tessera.base;
import tessera.tensor;

namespace tessera::nn {

/// The sums or means of ranks that have terms of them: along an axis on which x is Partial it
/// becomes Replicate. Other tensors stay as they are.
Tensor whole(const Tensor& x);

}  // namespace tessera::nn
