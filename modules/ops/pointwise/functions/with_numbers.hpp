#pragma once
// Functions of one element and of numbers, with their gradients. See Function in math.hpp.

#include <limits>
#include <tessera/math.hpp>

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)
// The loops of the C library's functions have no fused instructions, so generated code must not
// have them either; the other functions here have none to fuse.
#pragma clang fp contract(off)

namespace tessera::functions {

/// x if x > 0, else slope x.
struct LeakyRelu : Function {
  static constexpr auto loop = Loop::elements;
  template <class T>
  static constexpr T value(T x, T negative_slope) {
    return x > 0 ? x : negative_slope * x;
  }
  template <class T>
  static constexpr T gradient(T x, T grad, T negative_slope) {
    return x > 0 ? grad : negative_slope * grad;
  }
};

/// The nearest number within two bounds; NaN stays. The bounds belong to what is limited.
struct Hardtanh : Function {
  static constexpr auto loop = Loop::elements;
  template <class T>
  static constexpr T value(T x, T low, T high) {
    return x < low ? low : (x > high ? high : x);
  }
  template <class T>
  static constexpr T gradient(T x, T grad, T low, T high) {
    return ((x > low) & (x < high)) ? grad : T{};
  }
};

/// x if x > 0, else alpha (exp(x) - 1).
struct Elu : Function {
  static constexpr auto loop = Loop::library;
  template <class T>
  static constexpr T value(T x, T alpha) {
    return x > 0 ? x : alpha * math::expm1(x);
  }
  template <class T>
  static constexpr T gradient(T x, T grad, T alpha) {
    return x > 0 ? grad : alpha * math::exp(x) * grad;
  }
  template <class T>
  static T second(T x, double alpha) {
    const T zero = math::filled(x, 0);
    const auto below = x < zero;
    return math::select(below, math::exp(math::select(below, x, zero)) * alpha, zero);
  }
};

/// log(1 + exp(beta x)) / beta; x if beta x > threshold.
struct Softplus : Function {
  static constexpr auto loop = Loop::library;
  template <class T>
  static constexpr T value(T x, T beta, T threshold) {
    return beta * x > threshold ? x : math::log1p(math::exp(beta * x)) / beta;
  }
  template <class T>
  static constexpr T gradient(T x, T grad, T beta, T threshold) {
    return beta * x > threshold ? grad : grad / (1 + math::exp(-beta * x));
  }
  /// beta s (1 - s) with s = sigmoid(beta x), below the threshold.
  template <class T>
  static T second(T x, double beta, double threshold) {
    const T scaled = x * beta;
    const T s = math::sigmoid(scaled);
    return math::select(scaled > math::filled(x, threshold), math::filled(x, 0),
                        s * (1 - s) * beta);
  }
};

/// Numbers in the place of NaN and the infinities.
struct NanToNum : Function {
  static constexpr auto loop = Loop::elements;
  template <class T>
  static constexpr T value(T x, T nan, T positive, T negative) {
    const T infinity = math::constant<T>(std::numeric_limits<double>::infinity());
    return x != x ? nan : (x == infinity ? positive : (x == -infinity ? negative : x));
  }
};

}  // namespace tessera::functions

#pragma clang fp contract(on)
#pragma clang attribute pop
