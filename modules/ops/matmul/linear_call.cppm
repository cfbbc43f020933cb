module tessera.ops:linear_call;

import tessera.tensor;

namespace tessera::ops {

/// linear within a FeatureBlocksScope. Errors: features that the blocks divide along one dim only,
/// where ranks share the other; 16 bits; a bias that would be added within the sum over blocks.
Tensor linear_in_blocks(const Tensor& x, const Tensor& weight, const Tensor& bias);

}  // namespace tessera::ops
