#pragma once
// See update.hpp.

#include <cstddef>

#include "update.hpp"

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// Polyak and Juditsky, 1992: p = shrink p - rate g; a += weight (p - a). State: a.
struct Asgd {
  static constexpr std::size_t states = 1;
  OwnGradient gradient = {};
  double shrink = 1;  // 1 - lambd * rate
  double rate = 0;
  double weight = 1;

  /// The settings as numbers of C, and what they do with the lanes of vectors of C.
  template <class C>
  struct Lanes {
    constexpr explicit Lanes(const Asgd& rule)
        : shrink(static_cast<C>(rule.shrink)),
          rate(static_cast<C>(rule.rate)),
          weight(static_cast<C>(rule.weight)),
          whole(rule.weight == 1) {}

    template <class V>
    constexpr void operator()(V& p, V g, V* s) const {
      p = p * shrink - g * rate;
      s[0] = whole ? p : s[0] + (p - s[0]) * weight;
    }

    C shrink, rate, weight;
    bool whole;
  };
};

}  // namespace tessera::functions

#pragma clang attribute pop

namespace tessera::functions {

/// From ops::AsgdStep.
template <class Settings>
Asgd asgd_of(const Settings& s) {
  const double before = static_cast<double>(s.step.value) - 1;
  const double rate = s.lr / __builtin_pow(1.0 + s.lambd * s.lr * before, s.alpha.value);
  const double averaged = before - s.t0;
  return {.gradient = gradient_of(s),
          .shrink = 1.0 - s.lambd * rate,
          .rate = rate,
          .weight = 1.0 / (averaged > 1.0 ? averaged : 1.0)};
}

}  // namespace tessera::functions
