#pragma once
// See update.hpp.

#include <cstddef>

#include "update.hpp"

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// Adam and AdamW (Kingma and Ba, 2015; Loshchilov and Hutter, 2019): m = b1 m + (1 - b1) g;
/// v = b2 v + (1 - b2) g^2; p = shrink p - step_size m / (root_factor sqrt(v) + eps). With amsgrad
/// (Reddi et al., 2018) the largest v so far is in place of v. States: m, v, the largest v.
struct Adam {
  static constexpr std::size_t states = 3;
  OwnGradient gradient = {};
  double shrink = 1;  // 1 - lr * decoupled decay
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double step_size = 0;    // lr / (1 - beta1^t)
  double root_factor = 1;  // 1 / sqrt(1 - beta2^t)
  bool amsgrad = false;

  /// Sets what depends on the number t of the step: `rest1` is 1 - beta1^t, and `root2` the square
  /// root of 1 - beta2^t.
  constexpr void set_step(double lr, double rest1, double root2) {
    step_size = lr / rest1;
    root_factor = 1.0 / root2;
  }
  bool needs(std::size_t state) const { return state < 2 || amsgrad; }

  /// The settings as numbers of C, and what they do with the lanes of vectors of C.
  template <class C>
  struct Lanes {
    constexpr explicit Lanes(const Adam& rule)
        : shrink(static_cast<C>(rule.shrink)),
          rest1(static_cast<C>(1.0 - rule.beta1)),
          beta2(static_cast<C>(rule.beta2)),
          rest2(static_cast<C>(1.0 - rule.beta2)),
          step_size(static_cast<C>(rule.step_size)),
          root_factor(static_cast<C>(rule.root_factor)),
          eps(static_cast<C>(rule.eps)),
          amsgrad(rule.amsgrad) {}

    template <class V>
    constexpr void operator()(V& p, V g, V* s) const {
      const V m = average(s[0], g, rest1);
      const V v = s[1] * beta2 + g * g * rest2;
      s[0] = m;
      s[1] = v;
      s[2] = amsgrad ? math::maximum(s[2], v) : v;
      const V denominator = math::sqrt(s[2]) * root_factor + eps;
      p = p * shrink - m * step_size / denominator;
    }

    C shrink, rest1, beta2, rest2, step_size, root_factor, eps;
    bool amsgrad;
  };
};

}  // namespace tessera::functions

#pragma clang attribute pop

namespace tessera::functions {

/// From ops::AdamStep or ops::RoundedAdamStep.
template <class Settings>
Adam adam_of(const Settings& s, bool decoupled) {
  Adam rule = {.gradient = gradient_of(s, decoupled),
               .shrink = shrink_of(s, decoupled),
               .beta1 = s.beta1,
               .beta2 = s.beta2,
               .eps = s.eps,
               .amsgrad = s.amsgrad};
  const auto step = static_cast<double>(s.step.value);
  rule.set_step(s.lr, 1.0 - __builtin_pow(rule.beta1, step),
                __builtin_sqrt(1.0 - __builtin_pow(rule.beta2, step)));
  return rule;
}

}  // namespace tessera::functions
