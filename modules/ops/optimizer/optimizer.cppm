export module tessera.ops:optimizer;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

// An optimizer's step for lists of parameters: one call, and one pass of the dispatcher, for all of
// them. Lists have one length; what goes with a parameter has its shape and layout. Parameters and
// what is kept for them are written in place. Errors: other lengths, shapes, types or layouts; what
// is written is not contiguous.

/// AdamW as torch's: p *= 1 - lr * decay; moments; p -= lr / (1 - beta1^t) * m /
/// (sqrt(v / (1 - beta2^t)) + eps), for gradient * grad_scale. In one pass over p, m (exp_avgs) and
/// v (exp_avg_sqs). `step` counts from 1.
struct AdamWStep {
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  std::int64_t step;
};
void adamw_(std::span<const Tensor> parameters, std::span<const Tensor> gradients,
            std::span<const Tensor> exp_avgs, std::span<const Tensor> exp_avg_sqs,
            const AdamWStep& settings);

/// SGD as torch's (L2 decay; undefined momentum buffers for momentum 0).
struct SgdStep {
  double lr, momentum, weight_decay, grad_scale;
  bool nesterov;
  bool first;  // the buffers start as the gradients
};
void sgd_(std::span<const Tensor> parameters, std::span<const Tensor> gradients,
          std::span<const Tensor> momentum_buffers, const SgdStep& settings);

// Forms over lists: one call, and one pass of the dispatcher, for all tensors. Lists have one
// length; x[i] and what goes with it have one shape; x is written in place and stays as it lies,
// what goes with x[i] must lie as x[i] does, or be brought there as every operand is: a Replicate
// one is cut, any other is an error that names it, or redistributed in an AllowRedistribution
// scope.
void foreach_zero_(std::span<const Tensor> x);
void foreach_mul_(std::span<const Tensor> x, double value);
void foreach_add_(std::span<const Tensor> x, std::span<const Tensor> y, double alpha = 1);
void foreach_lerp_(std::span<const Tensor> x, std::span<const Tensor> end, double weight);
void foreach_addcmul_(std::span<const Tensor> x, std::span<const Tensor> a,
                      std::span<const Tensor> b, double value = 1);
void foreach_addcdiv_(std::span<const Tensor> x, std::span<const Tensor> a,
                      std::span<const Tensor> b, double value = 1);
/// The sums of squares of all elements of each tensor, [list's length] in f64: Partial(sum) where
/// the tensors are sharded.
Tensor foreach_squared_norm(std::span<const Tensor> x);
/// Each tensor cut along `dim` into as many chunks (the last padded with zeros), flattened: chunk i
/// of all of them stands in row i of the result, [dims in front of dim..., chunks, width]: what a
/// reduce-scatter of a list takes.
Tensor chunk_cat(std::span<const Tensor> tensors, std::int64_t dim, std::int64_t chunks);

}  // namespace tessera::ops
