export module tessera.ops:optimizer;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

// An optimizer's step for lists of parameters: one call of the dispatcher for all of them. The
// lists have the same length; gradients and state have the shape and layout of their parameter.
// Parameters and state are written in place. Errors: lengths, shapes, types or layouts differ; a
// written tensor is not contiguous.

/// AdamW as in PyTorch: p *= 1 - lr * decay; moments; p -= lr / (1 - beta1^t) * m /
/// (sqrt(v / (1 - beta2^t)) + eps), for gradient * grad_scale. In one pass over p, m (exp_avgs) and
/// v (exp_avg_sqs). The first `step` is 1.
struct AdamWStep {
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  std::int64_t step;
};
void adamw_(std::span<const Tensor> parameters, std::span<const Tensor> gradients,
            std::span<const Tensor> exp_avgs, std::span<const Tensor> exp_avg_sqs,
            const AdamWStep& settings);

/// SGD as in PyTorch (L2 decay; undefined momentum buffers for momentum 0).
struct SgdStep {
  double lr, momentum, weight_decay, grad_scale;
  bool nesterov;
  bool first;  // the buffers start as the gradients
};
void sgd_(std::span<const Tensor> parameters, std::span<const Tensor> gradients,
          std::span<const Tensor> momentum_buffers, const SgdStep& settings);

// Operators over lists: one call of the dispatcher for all tensors. The lists have the same length;
// x[i] and the tensors at position i of the other lists have the same shape. x is written in place
// and keeps its layout. The tensors at position i must have the layout of x[i]: a Replicate tensor
// is cut; any other layout is an error, or is redistributed within an AllowRedistribution scope.
void foreach_zero_(std::span<const Tensor> x);
void foreach_mul_(std::span<const Tensor> x, double value);
void foreach_add_(std::span<const Tensor> x, std::span<const Tensor> y, double alpha = 1);
void foreach_lerp_(std::span<const Tensor> x, std::span<const Tensor> end, double weight);
void foreach_addcmul_(std::span<const Tensor> x, std::span<const Tensor> a,
                      std::span<const Tensor> b, double value = 1);
void foreach_addcdiv_(std::span<const Tensor> x, std::span<const Tensor> a,
                      std::span<const Tensor> b, double value = 1);
/// The sums of squares of all elements of each tensor, [length of the list] in f64: Partial(sum) if
/// the tensors are sharded.
Tensor foreach_squared_norm(std::span<const Tensor> x);
/// Cuts each tensor along `dim` into `chunks` chunks (the last one padded with zeros) and flattens
/// them. Row i of the result, [dims before dim..., chunks, width], contains chunk i of all tensors.
/// This is the input of a reduce-scatter of a list.
Tensor chunk_cat(std::span<const Tensor> tensors, std::int64_t dim, std::int64_t chunks);

}  // namespace tessera::ops
