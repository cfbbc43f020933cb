#pragma once
// See update.hpp.

#include <cstddef>

#include "update.hpp"

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

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

  /// The settings as numbers of C, and what they do with the lanes of vectors of C.
  template <class C>
  struct Lanes {
    constexpr explicit Lanes(const NAdam& rule)
        : shrink(static_cast<C>(rule.shrink)),
          rest1(static_cast<C>(1.0 - rule.beta1)),
          beta2(static_cast<C>(rule.beta2)),
          rest2(static_cast<C>(1.0 - rule.beta2)),
          eps(static_cast<C>(rule.eps)),
          gradient_rate(static_cast<C>(rule.gradient_rate)),
          moment_rate(static_cast<C>(rule.moment_rate)),
          root_factor(static_cast<C>(rule.root_factor)) {}

    template <class V>
    constexpr void operator()(V& p, V g, V* s) const {
      s[0] = average(s[0], g, rest1);
      s[1] = s[1] * beta2 + g * g * rest2;
      const V denominator = math::sqrt(s[1]) * root_factor + eps;
      p = p * shrink - (g * gradient_rate + s[0] * moment_rate) / denominator;
    }

    C shrink, rest1, beta2, rest2, eps, gradient_rate, moment_rate, root_factor;
  };
};

}  // namespace tessera::functions

#pragma clang attribute pop
