#pragma once
// The functions of UnaryOp on vectors, and their derivatives: for the kernels and for generated
// code. Include from .cpp files only.

#include "pointwise.hpp"
#include "shared/kernels/simd_math.hpp"

namespace tessera::kernels {

template <class V>
using Scalar = std::remove_cvref_t<decltype(V{}[0])>;

inline constexpr double kSqrtTwoOverPi = 0.79788456080286535588;

/// sqrt(2 / pi) (x + 0.044715 x^3), Hendrycks and Gimpel, Gaussian Error Linear Units (2016).
template <class V>
[[gnu::always_inline]] inline V gelu_argument(V x) {
  using S = Scalar<V>;
  return static_cast<S>(kSqrtTwoOverPi) * (x + static_cast<S>(0.044715) * x * x * x);
}

/// f(x) for the functions of UnaryOp.
template <UnaryOp kOp, class V>
[[gnu::always_inline]] inline V unary_value(V x) {
  using S = Scalar<V>;
  using enum UnaryOp;
  if constexpr (kOp == neg) return -x;
  if constexpr (kOp == abs) return simd::abs(x);
  if constexpr (kOp == square) return x * x;
  if constexpr (kOp == sign) return x > 0 ? V{} + 1 : (x < 0 ? V{} - 1 : x);
  if constexpr (kOp == exp) return simd::exp(x);
  if constexpr (kOp == log) return simd::log(x);
  if constexpr (kOp == sqrt) return simd::sqrt(x);
  if constexpr (kOp == rsqrt) return 1 / simd::sqrt(x);
  if constexpr (kOp == reciprocal) return 1 / x;
  if constexpr (kOp == sin) return simd::sin(x);
  if constexpr (kOp == cos) return simd::cos(x);
  if constexpr (kOp == tanh) return simd::tanh(x);
  if constexpr (kOp == sigmoid) return simd::sigmoid(x);
  if constexpr (kOp == relu) return x < 0 ? V{} : x;
  if constexpr (kOp == silu) return x * simd::sigmoid(x);
  if constexpr (kOp == gelu) {  // the share of x that is lost is the tail's, on both sides of 0
    const V t = simd::minimum(V{} + 40, simd::abs(x));  // finite, NaN stays; no tail is left there
    return (x < 0 ? V{} : x) - t * simd::normal_tail(t);
  }
  if constexpr (kOp == gelu_tanh)
    return static_cast<S>(0.5) * x * (1 + simd::tanh(gelu_argument(x)));
  if constexpr (kOp == erf) return simd::erf(x);
  if constexpr (kOp == floor) return __builtin_elementwise_floor(x);
  if constexpr (kOp == ceil) return __builtin_elementwise_ceil(x);
  if constexpr (kOp == round) return __builtin_elementwise_roundeven(x);
  if constexpr (kOp == log1p) return simd::log1p(x);
  if constexpr (kOp == expm1) return simd::expm1(x);
}

/// f'(x).
template <UnaryOp kOp, class V>
[[gnu::always_inline]] inline V unary_slope(V x) {
  using S = Scalar<V>;
  using enum UnaryOp;
  const V one = V{} + 1;
  if constexpr (kOp == neg) return -one;
  if constexpr (kOp == abs) return x > 0 ? one : (x < 0 ? -one : x);
  if constexpr (kOp == square) return x + x;
  if constexpr (kOp == sign || kOp == floor || kOp == ceil || kOp == round) return V{};
  if constexpr (kOp == exp || kOp == expm1) return simd::exp(x);
  if constexpr (kOp == log) return 1 / x;
  if constexpr (kOp == sqrt) return static_cast<S>(0.5) / simd::sqrt(x);
  if constexpr (kOp == rsqrt) return static_cast<S>(-0.5) / (x * simd::sqrt(x));
  if constexpr (kOp == reciprocal) return -1 / (x * x);
  if constexpr (kOp == sin) return simd::cos(x);
  if constexpr (kOp == cos) return -simd::sin(x);
  if constexpr (kOp == tanh) {
    const V y = simd::tanh(x);
    return 1 - y * y;
  }
  if constexpr (kOp == sigmoid) {
    const V y = simd::sigmoid(x);
    return y * (1 - y);
  }
  if constexpr (kOp == relu) return x > 0 ? one : V{};
  if constexpr (kOp == silu) {
    const V s = simd::sigmoid(x);
    return s * (1 + x * (1 - s));
  }
  if constexpr (kOp == gelu) {
    constexpr double kDensity = 0.39894228040143267794;  // 1 / sqrt(2 pi)
    const V tail = simd::normal_tail(simd::abs(x));
    const V cumulative = x < 0 ? tail : 1 - tail;
    return cumulative + x * static_cast<S>(kDensity) * simd::exp(static_cast<S>(-0.5) * x * x);
  }
  if constexpr (kOp == gelu_tanh) {
    const V y = simd::tanh(gelu_argument(x));
    const V slope = static_cast<S>(kSqrtTwoOverPi) * (1 + static_cast<S>(3 * 0.044715) * x * x);
    return static_cast<S>(0.5) * (1 + y + x * (1 - y * y) * slope);
  }
  if constexpr (kOp == erf) return static_cast<S>(1.12837916709551257390) * simd::exp(-x * x);
  if constexpr (kOp == log1p) return 1 / (1 + x);
}

}  // namespace tessera::kernels
