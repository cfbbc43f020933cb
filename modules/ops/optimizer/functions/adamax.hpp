#pragma once
// See update.hpp.

#include <cstddef>

#include "update.hpp"

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// Kingma and Ba, 2015: m as in Adam; u = max(b2 u, |g| + eps); p -= step_size m / u. States: m, u.
struct Adamax {
  static constexpr std::size_t states = 2;
  OwnGradient gradient = {};
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double step_size = 0;  // lr / (1 - beta1^t)

  /// The settings as numbers of C, and what they do with the lanes of vectors of C.
  template <class C>
  struct Lanes {
    constexpr explicit Lanes(const Adamax& rule)
        : rest1(static_cast<C>(1.0 - rule.beta1)),
          beta2(static_cast<C>(rule.beta2)),
          eps(static_cast<C>(rule.eps)),
          step_size(static_cast<C>(rule.step_size)) {}

    template <class V>
    constexpr void operator()(V& p, V g, V* s) const {
      s[0] = average(s[0], g, rest1);
      s[1] = math::maximum(s[1] * beta2, (g < 0 ? -g : g) + eps);
      p = p - s[0] * step_size / s[1];
    }

    C rest1, beta2, eps, step_size;
  };
};

}  // namespace tessera::functions

#pragma clang attribute pop

namespace tessera::functions {

/// From ops::AdamaxStep.
template <class Settings>
Adamax adamax_of(const Settings& s) {
  const auto step = static_cast<double>(s.step.value);
  return {.gradient = gradient_of(s),
          .beta1 = s.beta1,
          .beta2 = s.beta2,
          .eps = s.eps,
          .step_size = s.lr / (1.0 - __builtin_pow(s.beta1.value, step))};
}

}  // namespace tessera::functions
