#pragma once
// Optimizer steps, each in one pass over flat arrays. C is float or double.

#include <cstdint>

#include "shared/kernels/types.hpp"

namespace tessera::kernels {

struct AdamW {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  double grad_scale = 1.0;  // multiplies the gradient first (clipping)
  double correction1 = 1;   // 1 - beta1^t at the update t, from 1
  double correction2 = 1;   // 1 - beta2^t
};

/// As torch.optim.AdamW: p *= 1 - lr wd; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
/// p -= lr / correction1 * m / (sqrt(v) / sqrt(correction2) + eps). All arrays have `count`
/// elements and alias none of the others. Source: Loshchilov and Hutter, Decoupled Weight Decay
/// Regularization (2019).
template <class C, class Gradient>
void adamw(const AdamW& options, std::int64_t count, C* parameter, const Gradient* gradient,
           C* exp_avg, C* exp_avg_sq);

struct Sgd {
  double learning_rate = 1e-3;
  double momentum = 0.0;
  double weight_decay = 0.0;  // added to the gradient: an L2 penalty
  double grad_scale = 1.0;
  bool nesterov = false;
  bool first_step = false;  // the momentum buffer starts as the gradient
};

/// As torch.optim.SGD with dampening 0: g += wd p; b = momentum b + g (b = g at the first step);
/// p -= lr (nesterov ? g + momentum b : b). `momentum_buffer` may be null when momentum is 0.
template <class C, class Gradient>
void sgd(const Sgd& options, std::int64_t count, C* parameter, const Gradient* gradient,
         C* momentum_buffer);

// Instantiated for C/Gradient: float/float, double/double, float/BFloat16, float/Half.

}  // namespace tessera::kernels
