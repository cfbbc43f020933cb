module;
#include <cstdint>
export module tessera.ops:norm;

import tessera.tensor;

export namespace tessera::ops {

/// x / sqrt(mean(x^2) + eps) * weight over the last dim. weight [n].
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps = 1e-5);
/// (x - mean) / sqrt(var + eps) * weight + bias over the last dim; weight and bias [n], each may be
/// undefined.
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps = 1e-5);
Tensor softmax(const Tensor& x, std::int64_t dim);
/// With `loss_parallel` the dim may be sharded: the ranks reduce its maxima and its sums of
/// exponentials (and one sum in backward), 2 numbers for each element of the other dims.
Tensor log_softmax(const Tensor& x, std::int64_t dim, bool loss_parallel = false);

}  // namespace tessera::ops
