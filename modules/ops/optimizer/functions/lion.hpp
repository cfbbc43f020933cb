#pragma once
// See update.hpp.

#include <cstddef>

#include "update.hpp"

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// Chen et al., 2023: p = shrink p - rate sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g. State: m.
struct Lion {
  static constexpr std::size_t states = 1;
  OwnGradient gradient = {};
  double shrink = 1;
  double rate = 0;
  double beta1 = 0;
  double beta2 = 0;

  /// The settings as numbers of C, and what they do with the lanes of vectors of C.
  template <class C>
  struct Lanes {
    constexpr explicit Lanes(const Lion& rule)
        : shrink(static_cast<C>(rule.shrink)),
          rate(static_cast<C>(rule.rate)),
          rest1(static_cast<C>(1.0 - rule.beta1)),
          rest2(static_cast<C>(1.0 - rule.beta2)) {}

    template <class V>
    constexpr void operator()(V& p, V g, V* s) const {
      p = p * shrink - math::sign(average(s[0], g, rest1)) * rate;
      s[0] = average(s[0], g, rest2);
    }

    C shrink, rate, rest1, rest2;
  };
};

}  // namespace tessera::functions

#pragma clang attribute pop

namespace tessera::functions {

/// From ops::LionStep.
template <class Settings>
Lion lion_of(const Settings& s) {
  return {.gradient = gradient_of(s, true),
          .shrink = shrink_of(s),
          .rate = s.lr,
          .beta1 = s.beta1,
          .beta2 = s.beta2};
}

}  // namespace tessera::functions
