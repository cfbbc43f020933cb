#pragma once
// The functions of FunctionOp: for the kernels and for generated code. Include from .cpp files
// only.

#include <cmath>
#include <limits>

#include "functions.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {

/// p, q, r.
template <class T>
struct FunctionNumbers {
  T p, q, r;
};

/// Of one element.
template <FunctionOp kOp, class T>
[[gnu::always_inline]] inline T function_value(T a, [[maybe_unused]] T b, [[maybe_unused]] T c,
                                               const FunctionNumbers<T>& n) {
  using enum FunctionOp;
  constexpr T kHalf = static_cast<T>(0.5);
  if constexpr (kOp == leaky_relu) return a > 0 ? a : n.p * a;
  if constexpr (kOp == leaky_relu_backward) return a > 0 ? b : n.p * b;
  if constexpr (kOp == elu) return a > 0 ? a : n.p * std::expm1(a);
  if constexpr (kOp == elu_backward) return a > 0 ? b : n.p * std::exp(a) * b;
  if constexpr (kOp == softplus) {
    return n.p * a > n.q ? a : std::log1p(std::exp(n.p * a)) / n.p;
  }
  if constexpr (kOp == softplus_backward) {
    return n.p * a > n.q ? b : b / (1 + std::exp(-n.p * a));
  }
  if constexpr (kOp == hardtanh) return a < n.p ? n.p : (a > n.q ? n.q : a);
  if constexpr (kOp == hardtanh_backward) return a > n.p && a < n.q ? b : T{0};
  if constexpr (kOp == nan_to_num) {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    return a != a ? n.p : (a == kInfinity ? n.q : (a == -kInfinity ? n.r : a));
  }
  if constexpr (kOp == smooth_l1) {
    const T d = std::abs(a - b);
    return d < n.p ? kHalf * d * d / n.p : d - kHalf * n.p;
  }
  if constexpr (kOp == cross_entropy) {
    return (a > 0 ? a : T{0}) - a * b + std::log1p(std::exp(-std::abs(a)));
  }
  if constexpr (kOp == kl_div) return b > 0 ? b * (std::log(b) - a) : T{0};
  if constexpr (kOp == kl_div_log) return std::exp(b) * (b - a);
  // From the end that is nearer, so that weight 1 gives the end exactly.
  if constexpr (kOp == lerp_scalar) {
    return n.p < kHalf ? a + n.p * (b - a) : b - (1 - n.p) * (b - a);
  }
  if constexpr (kOp == lerp) return c < kHalf ? a + c * (b - a) : b - (1 - c) * (b - a);
  if constexpr (kOp == addcmul) return a + n.p * b * c;
  if constexpr (kOp == addcdiv) return a + n.p * b / c;
}

/// Of each lane.
template <FunctionOp kOp, class V>
[[gnu::always_inline]] inline V function_of_lanes(V a, V b, V c, V p, V q, V r) {
  using T = std::remove_cvref_t<decltype(a[0])>;
  V y;
  for (std::size_t lane = 0; lane < sizeof(V) / sizeof(T); ++lane) {
    y[lane] = function_value<kOp, T>(a[lane], b[lane], c[lane],
                                     FunctionNumbers<T>{p[lane], q[lane], r[lane]});
  }
  return y;
}

}  // namespace tessera::kernels
