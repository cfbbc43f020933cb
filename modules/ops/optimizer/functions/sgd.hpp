#pragma once
// See update.hpp.

#include <cstddef>

#include "update.hpp"

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// b = momentum b + (1 - dampening) g (b = g at the first step);
/// p -= rate (nesterov ? g + momentum b : b). State: b, where there is momentum.
struct Sgd {
  static constexpr std::size_t states = 1;
  OwnGradient gradient = {};
  double rate = 0;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  bool first = false;

  bool needs(std::size_t) const { return momentum != 0; }

  /// The settings as numbers of C, and what they do with the lanes of vectors of C.
  template <class C>
  struct Lanes {
    constexpr explicit Lanes(const Sgd& rule)
        : rate(static_cast<C>(rule.rate)),
          momentum(static_cast<C>(rule.momentum)),
          rest(static_cast<C>(1.0 - rule.dampening)),
          buffered(rule.momentum != 0),
          nesterov(rule.nesterov),
          first(rule.first) {}

    template <class V>
    constexpr void operator()(V& p, V g, V* s) const {
      V change = g;
      if (buffered) {
        s[0] = first ? g : s[0] * momentum + g * rest;
        change = nesterov ? g + s[0] * momentum : s[0];
      }
      p = p - change * rate;
    }

    C rate, momentum, rest;
    bool buffered, nesterov, first;
  };
};

}  // namespace tessera::functions

#pragma clang attribute pop

namespace tessera::functions {

/// From ops::SgdStep.
template <class Settings>
Sgd sgd_of(const Settings& s) {
  return {.gradient = gradient_of(s),
          .rate = s.lr,
          .momentum = s.momentum,
          .dampening = s.dampening,
          .nesterov = s.nesterov,
          .first = s.step == 1};
}

}  // namespace tessera::functions
