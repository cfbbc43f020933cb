module;
#include <cstdint>
export module tessera.ops:optimizer;

import tessera.tensor;

export namespace tessera::ops {

/// One step of AdamW as torch's: p *= 1 - lr * decay; moments; p -= lr / (1 - beta1^t) * m /
/// (sqrt(v / (1 - beta2^t)) + eps). In one pass, in place over p, m (exp_avg) and v (exp_avg_sq),
/// for gradient * grad_scale. `step` counts from 1.
struct AdamWStep {
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  std::int64_t step;
};
void adamw_(const Tensor& parameter, const Tensor& gradient, const Tensor& exp_avg,
            const Tensor& exp_avg_sq, const AdamWStep& settings);

/// One step of SGD as torch's (L2 decay; momentum buffer undefined for momentum 0).
struct SgdStep {
  double lr, momentum, weight_decay, grad_scale;
  bool nesterov;
  bool first;  // the buffer starts as the gradient
};
void sgd_(const Tensor& parameter, const Tensor& gradient, const Tensor& momentum_buffer,
          const SgdStep& settings);

}  // namespace tessera::ops
