#pragma once
// See update.hpp.

#include <cstddef>

#include "update.hpp"

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// Liu et al., 2020: m and v as in Adam; p = shrink p - rate m / (adaptive ? sqrt(v) + eps : 1).
/// States: m, v.
struct RAdam {
  static constexpr std::size_t states = 2;
  OwnGradient gradient = {};
  double shrink = 1;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double rate = 0;  // with the rectification and both corrections
  bool adaptive = false;

  /// The settings as numbers of C, and what they do with the lanes of vectors of C.
  template <class C>
  struct Lanes {
    constexpr explicit Lanes(const RAdam& rule)
        : shrink(static_cast<C>(rule.shrink)),
          rest1(static_cast<C>(1.0 - rule.beta1)),
          beta2(static_cast<C>(rule.beta2)),
          rest2(static_cast<C>(1.0 - rule.beta2)),
          eps(static_cast<C>(rule.eps)),
          rate(static_cast<C>(rule.rate)),
          adaptive(rule.adaptive) {}

    template <class V>
    constexpr void operator()(V& p, V g, V* s) const {
      s[0] = average(s[0], g, rest1);
      s[1] = s[1] * beta2 + g * g * rest2;
      const V change = s[0] * rate;
      p = p * shrink - (adaptive ? change / (math::sqrt(s[1]) + eps) : change);
    }

    C shrink, rest1, beta2, rest2, eps, rate;
    bool adaptive;
  };
};

}  // namespace tessera::functions

#pragma clang attribute pop

namespace tessera::functions {

/// From ops::RAdamStep.
template <class Settings>
RAdam radam_of(const Settings& s) {
  const auto step = static_cast<double>(s.step.value);
  const double power2 = __builtin_pow(s.beta2.value, step);
  const double correction2 = 1.0 - power2;
  // The length of the average of squares: its limit, and that of this step.
  const double limit = 2.0 / (1.0 - s.beta2) - 1.0;
  const double length = limit - 2.0 * step * power2 / correction2;
  const bool adaptive = length > 5.0;
  const double rectification =
      adaptive ? __builtin_sqrt((length - 4.0) * (length - 2.0) * limit /
                                ((limit - 4.0) * (limit - 2.0) * length) * correction2)
               : 1.0;
  return {.gradient = gradient_of(s, s.decoupled),
          .shrink = shrink_of(s, s.decoupled),
          .beta1 = s.beta1,
          .beta2 = s.beta2,
          .eps = s.eps,
          .rate = s.lr / (1.0 - __builtin_pow(s.beta1.value, step)) * rectification,
          .adaptive = adaptive};
}

}  // namespace tessera::functions
