export module tessera.ops:norm;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

/// x / sqrt(mean(x^2) + eps) * weight over the last dim. weight [n].
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps = 1e-5);
/// (x - mean) / sqrt(var + eps) * weight + bias over the last dim; weight and bias [n], each may be
/// undefined.
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps = 1e-5);
/// layer_norm over each of `groups` groups of channels, x [N, C, ...]; weight and bias [C], each
/// may be undefined.
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);
/// (x - mean) / sqrt(var + eps) * weight + bias for each channel, x [N, C, ...]. Training uses the
/// batch's mean and variance, and updates the running ones (may be undefined) with `momentum`;
/// evaluation uses the running ones. The statistics are those of the whole batch on all ranks;
/// computing them communicates, so a sharded batch needs an AllowRedistribution scope.
Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, bool training, double momentum = 0.1,
                  double eps = 1e-5);
/// With `across_ranks` the dim may be sharded, as with log_softmax's `loss_parallel`; the result is
/// then computed as exp(log_softmax(x)).
Tensor softmax(const Tensor& x, std::int64_t dim, bool across_ranks = false);
/// With `loss_parallel` the dim may be sharded: the ranks reduce its maxima and its sums of
/// exponentials (and one sum in backward), 2 numbers per element of the other dims.
Tensor log_softmax(const Tensor& x, std::int64_t dim, bool loss_parallel = false);

}  // namespace tessera::ops
