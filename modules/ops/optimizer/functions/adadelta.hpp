#pragma once
// See update.hpp.

#include <cstddef>

#include "update.hpp"

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// Zeiler, 2012: v = rho v + (1 - rho) g^2; d = g sqrt(u + eps) / sqrt(v + eps);
/// u = rho u + (1 - rho) d^2; p -= rate d. States: v, u.
struct Adadelta {
  static constexpr std::size_t states = 2;
  OwnGradient gradient = {};
  double rate = 0;
  double rho = 0;
  double eps = 0;

  /// The settings as numbers of C, and what they do with the lanes of vectors of C.
  template <class C>
  struct Lanes {
    constexpr explicit Lanes(const Adadelta& rule)
        : rate(static_cast<C>(rule.rate)),
          rho(static_cast<C>(rule.rho)),
          rest(static_cast<C>(1.0 - rule.rho)),
          eps(static_cast<C>(rule.eps)) {}

    template <class V>
    constexpr void operator()(V& p, V g, V* s) const {
      s[0] = s[0] * rho + g * g * rest;
      const V change = math::sqrt(s[1] + eps) / math::sqrt(s[0] + eps) * g;
      s[1] = s[1] * rho + change * change * rest;
      p = p - change * rate;
    }

    C rate, rho, rest, eps;
  };
};

}  // namespace tessera::functions

#pragma clang attribute pop

namespace tessera::functions {

/// From ops::AdadeltaStep.
template <class Settings>
Adadelta adadelta_of(const Settings& s) {
  return {.gradient = gradient_of(s), .rate = s.lr, .rho = s.rho, .eps = s.eps};
}

}  // namespace tessera::functions
