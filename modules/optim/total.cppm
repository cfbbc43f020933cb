// Sums over all elements of distributed tensors.
module tessera.optim:total;

import tessera.base;
import tessera.tensor;

namespace tessera::optim {

/// The sum (or with `maximum` the largest) of terms without dims, which may have any meshes and
/// layouts, as one local tensor: one collective for each axis of each mesh at most. Null: there is
/// no term.
Tensor total_of(std::vector<Tensor> terms, bool maximum = false);

/// The largest magnitude of x's elements as a term for total_of: f64, Partial(max) where x is
/// sharded; 0 of no elements, infinity where one is NaN.
Tensor largest_magnitude(const Tensor& x);

}  // namespace tessera::optim
