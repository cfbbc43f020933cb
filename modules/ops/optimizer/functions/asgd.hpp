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
  double rate = 1e-2;
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
