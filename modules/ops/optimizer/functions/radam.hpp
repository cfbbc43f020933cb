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
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double rate = 1e-3;  // with the rectification and both corrections
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
