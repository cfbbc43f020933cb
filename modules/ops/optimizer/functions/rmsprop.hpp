#pragma once
// See update.hpp.

#include <cstddef>

#include "update.hpp"

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// Hinton, 2012; centered: Graves, 2013: v = a v + (1 - a) g^2; centered: c = a c + (1 - a) g, and
/// v - c^2 in place of v; d = g / (sqrt(v) + eps); with momentum b = momentum b + d in place of d;
/// p -= rate d. States: v, b, c.
struct RMSprop {
  static constexpr std::size_t states = 3;
  OwnGradient gradient = {};
  double rate = 0;
  double alpha = 0;
  double eps = 0;
  double momentum = 0;
  bool centered = false;

  bool needs(std::size_t state) const {
    return state == 0 || (state == 1 ? momentum != 0 : centered);
  }

  /// The settings as numbers of C, and what they do with the lanes of vectors of C.
  template <class C>
  struct Lanes {
    constexpr explicit Lanes(const RMSprop& rule)
        : rate(static_cast<C>(rule.rate)),
          alpha(static_cast<C>(rule.alpha)),
          rest(static_cast<C>(1.0 - rule.alpha)),
          eps(static_cast<C>(rule.eps)),
          momentum(static_cast<C>(rule.momentum)),
          buffered(rule.momentum != 0),
          centered(rule.centered) {}

    template <class V>
    constexpr void operator()(V& p, V g, V* s) const {
      s[0] = s[0] * alpha + g * g * rest;
      V variance = s[0];
      if (centered) {
        s[2] = average(s[2], g, rest);
        variance = s[0] - s[2] * s[2];
        variance = variance < 0 ? V{} : variance;  // by rounding; NaN stays
      }
      V change = g / (math::sqrt(variance) + eps);
      if (buffered) {
        s[1] = s[1] * momentum + change;
        change = s[1];
      }
      p = p - change * rate;
    }

    C rate, alpha, rest, eps, momentum;
    bool buffered, centered;
  };
};

}  // namespace tessera::functions

#pragma clang attribute pop

namespace tessera::functions {

/// From ops::RMSpropStep.
template <class Settings>
RMSprop rmsprop_of(const Settings& s) {
  return {.gradient = gradient_of(s),
          .rate = s.lr,
          .alpha = s.alpha,
          .eps = s.eps,
          .momentum = s.momentum,
          .centered = s.centered};
}

}  // namespace tessera::functions
