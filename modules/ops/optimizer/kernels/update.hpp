#pragma once
// Steps of optimizers, each in one pass over flat arrays: p is the parameter, g its gradient, and
// what stands in the formulas besides is the optimizer's state. Numbers that depend on the step
// come as fields; the formulas of the lanes are in the sources.

#include <cstddef>
#include <cstdint>

#include "shared/kernels/types.hpp"

namespace tessera::kernels {

/// What every rule begins with: g = scale * gradient + decay * p.
struct OwnGradient {
  double scale = 1;  // clipping; negative to maximize
  double decay = 0;  // an L2 penalty
};

/// Adam and AdamW (Kingma and Ba, 2015; Loshchilov and Hutter, 2019): m = b1 m + (1 - b1) g;
/// v = b2 v + (1 - b2) g^2; p = shrink p - step_size m / (root_factor sqrt(v) + eps). With amsgrad
/// (Reddi et al., 2018) the largest v so far is in place of v. States: m, v, the largest v.
struct Adam {
  static constexpr std::size_t states = 3;
  OwnGradient gradient = {};
  double shrink = 1;  // 1 - lr * decoupled decay
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double step_size = 1e-3;  // lr / (1 - beta1^t)
  double root_factor = 1;   // 1 / sqrt(1 - beta2^t)
  bool amsgrad = false;

  bool needs(std::size_t state) const { return state < 2 || amsgrad; }
};

/// b = momentum b + (1 - dampening) g (b = g at the first step);
/// p -= rate (nesterov ? g + momentum b : b). State: b, where there is momentum.
struct Sgd {
  static constexpr std::size_t states = 1;
  OwnGradient gradient = {};
  double rate = 1e-3;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  bool first = false;

  bool needs(std::size_t) const { return momentum != 0; }
};

/// Duchi et al., 2011: s += g^2 (s = initial + g^2 at the first step); p -= rate g / (sqrt(s) +
/// eps). State: s.
struct Adagrad {
  static constexpr std::size_t states = 1;
  OwnGradient gradient = {};
  double rate = 1e-2;  // lr / (1 + (t - 1) lr_decay)
  double eps = 1e-10;
  double initial = 0;
  bool first = false;
};

/// Zeiler, 2012: v = rho v + (1 - rho) g^2; d = g sqrt(u + eps) / sqrt(v + eps);
/// u = rho u + (1 - rho) d^2; p -= rate d. States: v, u.
struct Adadelta {
  static constexpr std::size_t states = 2;
  OwnGradient gradient = {};
  double rate = 1;
  double rho = 0.9;
  double eps = 1e-6;
};

/// Kingma and Ba, 2015: m as in Adam; u = max(b2 u, |g| + eps); p -= step_size m / u. States: m, u.
struct Adamax {
  static constexpr std::size_t states = 2;
  OwnGradient gradient = {};
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double step_size = 2e-3;  // lr / (1 - beta1^t)
};

/// Dozat, 2016: m and v as in Adam; p = shrink p - (gradient_rate g + moment_rate m) /
/// (root_factor sqrt(v) + eps). States: m, v.
struct NAdam {
  static constexpr std::size_t states = 2;
  OwnGradient gradient = {};
  double shrink = 1;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double gradient_rate = 0;  // lr (1 - mu_t) / (1 - mu_1 ... mu_t)
  double moment_rate = 0;    // lr mu_(t+1) / (1 - mu_1 ... mu_(t+1))
  double root_factor = 1;    // 1 / sqrt(1 - beta2^t)
};

/// Liu et al., 2020: m and v as in Adam; p = shrink p - rate m / (adaptive ? sqrt(v) + eps : 1).
/// States: m, v.
struct RAdam {
  static constexpr std::size_t states = 2;
  OwnGradient gradient = {};
  double shrink = 1;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double rate = 1e-3;  // with the rectification and both corrections
  bool adaptive = false;
};

/// Hinton, 2012; centered: Graves, 2013: v = a v + (1 - a) g^2; centered: c = a c + (1 - a) g, and
/// v - c^2 in place of v; d = g / (sqrt(v) + eps); with momentum b = momentum b + d in place of d;
/// p -= rate d. States: v, b, c.
struct RMSprop {
  static constexpr std::size_t states = 3;
  OwnGradient gradient = {};
  double rate = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double momentum = 0;
  bool centered = false;

  bool needs(std::size_t state) const {
    return state == 0 || (state == 1 ? momentum != 0 : centered);
  }
};

/// Riedmiller and Braun, 1993: each element has a step size, which grows by `increase` while its
/// gradient keeps its sign, and is multiplied by `decrease` where that changes: then g = 0.
/// p -= sign(g) size. States: the last g, sizes (`initial` at the first step).
struct Rprop {
  static constexpr std::size_t states = 2;
  OwnGradient gradient = {};
  double decrease = 0.5;
  double increase = 1.2;
  double smallest = 1e-6;
  double largest = 50;
  double initial = 1e-2;
  bool first = false;
};

/// Polyak and Juditsky, 1992: p = shrink p - rate g; a += weight (p - a). State: a.
struct Asgd {
  static constexpr std::size_t states = 1;
  OwnGradient gradient = {};
  double shrink = 1;  // 1 - lambd * rate
  double rate = 1e-2;
  double weight = 1;
};

/// Chen et al., 2023: p = shrink p - rate sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g. State: m.
struct Lion {
  static constexpr std::size_t states = 1;
  OwnGradient gradient = {};
  double shrink = 1;
  double rate = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
};

/// One step for `count` elements; no array aliases another. `states` has Rule::states pointers to
/// arrays of the parameter's type; those that the rule does not need may be null. False where the
/// types are not f32 with f32, bf16 or f16, or f64 with f64: nothing was written then.
template <class Rule>
bool update(const Rule& rule, DType parameter_type, DType gradient_type, std::int64_t count,
            void* parameter, const void* gradient, void* const* states);

}  // namespace tessera::kernels
