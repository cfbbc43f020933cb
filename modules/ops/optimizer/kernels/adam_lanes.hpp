#pragma once
// What Adam does with the lanes of a vector; for the source of its kernel and that of the kernel
// with 8-bit state.

#include "lanes.hpp"

namespace tessera::kernels {

template <class C>
struct Lanes<Adam, C> {
  explicit Lanes(const Adam& rule)
      : shrink(static_cast<C>(rule.shrink)),
        rest1(static_cast<C>(1.0 - rule.beta1)),
        beta2(static_cast<C>(rule.beta2)),
        rest2(static_cast<C>(1.0 - rule.beta2)),
        step_size(static_cast<C>(rule.step_size)),
        root_factor(static_cast<C>(rule.root_factor)),
        eps(static_cast<C>(rule.eps)),
        amsgrad(rule.amsgrad) {}

  template <class V>
  [[gnu::always_inline]] void operator()(V& p, V g, V* s) const {
    const V m = average(s[0], g, rest1);
    const V v = s[1] * beta2 + g * g * rest2;
    s[0] = m;
    s[1] = v;
    s[2] = amsgrad ? simd::maximum(s[2], v) : v;
    const V denominator = simd::sqrt(s[2]) * root_factor + eps;
    p = p * shrink - m * step_size / denominator;
  }

  C shrink, rest1, beta2, rest2, step_size, root_factor, eps;
  bool amsgrad;
};

}  // namespace tessera::kernels
