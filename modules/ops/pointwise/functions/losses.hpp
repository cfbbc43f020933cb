#pragma once
// The losses of two elements. See Function in math.hpp.

#include <tessera/math.hpp>

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)
// The kernels' loops have no fused instructions, so generated code must not have them either.
#pragma clang fp contract(off)

namespace tessera::functions {

/// With d = |a - b|: d < beta ? d d / (2 beta) : d - beta / 2.
struct SmoothL1 : Function {
  static constexpr auto loop = Loop::library;
  template <class T>
  static constexpr T value(T a, T b, T beta) {
    const T half = math::constant<T>(0.5);
    const T d = math::abs(a - b);
    return d < beta ? half * d * d / beta : d - half * beta;
  }
};

/// Loss of sigmoid(a) with target b: max(a, 0) - a b + log(1 + exp(-|a|)).
struct LogisticLoss : Function {
  static constexpr auto loop = Loop::library;
  template <class T>
  static constexpr T value(T a, T b) {
    return (a > 0 ? a : T{}) - a * b + math::log1p(math::exp(-math::abs(a)));
  }
};

/// b > 0 ? b (log b - a) : 0.
struct KlDiv : Function {
  static constexpr auto loop = Loop::library;
  template <class T>
  static constexpr T value(T a, T b) {
    return b > 0 ? b * (math::log(b) - a) : T{};
  }
};

/// exp(b) (b - a).
struct KlDivOfLogarithm : Function {
  static constexpr auto loop = Loop::library;
  template <class T>
  static constexpr T value(T a, T b) {
    return math::exp(b) * (b - a);
  }
};

}  // namespace tessera::functions

#pragma clang fp contract(on)
#pragma clang attribute pop
