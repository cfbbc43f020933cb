#pragma once
// More elementary functions on the vectors of simd.hpp. F32: polynomials, within about 2 units in
// the last place; F64: the C library, lane by lane.

#include <cmath>
#include <cstdint>
#include <limits>

#include "simd.hpp"

namespace tessera::kernels::simd {

template <class Function>
[[gnu::always_inline]] inline F32 each_lane(F32 value, Function function) {
  F32 result;
  for (int lane = 0; lane < 16; ++lane) result[lane] = function(value[lane]);
  return result;
}

template <class V>
[[gnu::always_inline]] inline V abs(V x) {
  return __builtin_elementwise_abs(x);
}

template <class V>
[[gnu::always_inline]] inline V copy_sign(V magnitude, V sign) {
  return __builtin_elementwise_copysign(magnitude, sign);
}

/// log(x) = e log 2 + log(m), m in [sqrt(1/2), sqrt(2)), with Cephes' polynomial (logf).
[[gnu::always_inline]] inline F32 log(F32 x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // Subnormals are brought into the normal range.
  const auto tiny = x < std::numeric_limits<float>::min();
  const F32 scaled = tiny ? x * 0x1p23F : x;
  const U32 raw = bits_as<U32>(scaled) - 0x3f3504f3U;  // sqrt(1/2)
  const F32 exponent = __builtin_convertvector(bits_as<I32>(raw) >> 23, F32);
  const F32 e = tiny ? exponent - 23.0F : exponent;
  const F32 m = bits_as<F32>((raw & 0x007fffffU) + 0x3f3504f3U) - 1.0F;
  F32 p = splat<F32>(7.0376836292e-2F);
  p = p * m - 1.1514610310e-1F;
  p = p * m + 1.1676998740e-1F;
  p = p * m - 1.2420140846e-1F;
  p = p * m + 1.4249322787e-1F;
  p = p * m - 1.6668057665e-1F;
  p = p * m + 2.0000714765e-1F;
  p = p * m - 2.4999993993e-1F;
  p = p * m + 3.3333331174e-1F;
  const F32 square = m * m;
  F32 y = p * m * square;
  y = y + e * -2.12194440e-4F;
  y = y - square * 0.5F;
  F32 result = m + y + e * 0.693359375F;
  result = x == kInfinity ? x : result;
  result = x == 0.0F ? splat<F32>(-kInfinity) : result;
  return x >= 0.0F ? result : splat<F32>(std::numeric_limits<float>::quiet_NaN());
}

/// Cephes' tanhf: a polynomial near 0, else 1 - 2 / (exp(2 x) + 1).
[[gnu::always_inline]] inline F32 tanh(F32 x) {
  const F32 z = x * x;
  F32 p = splat<F32>(-5.70498872745e-3F);
  p = p * z + 2.06390887954e-2F;
  p = p * z - 5.37397155531e-2F;
  p = p * z + 1.33314422036e-1F;
  p = p * z - 3.33332819422e-1F;
  const F32 near = x + x * (z * p);
  const F32 magnitude = abs(x);
  const F32 far = copy_sign(1.0F - 2.0F / (exp(magnitude + magnitude) + 1.0F), x);
  return magnitude < 0.625F ? near : far;
}

/// Two minimax polynomials, by N. Juffa ("faithfully-rounded error function", 2016).
[[gnu::always_inline]] inline F32 erf(F32 x) {
  const F32 t = abs(x);
  const F32 s = x * x;
  F32 far = t * -1.72853470e-5F + 3.83197126e-4F;
  far = far * s + (t * -3.88396438e-3F + 2.42546219e-2F);
  far = far * t - 1.06777877e-1F;
  far = far * t - 6.34846687e-1F;
  far = far * t - 1.28717512e-1F;
  far = far * t - t;
  far = copy_sign(1.0F - exp_nonpositive(far), x);  // -16 or more where it is used
  far = t > 4.0F ? copy_sign(splat<F32>(1.0F), x) : far;
  F32 near = splat<F32>(-5.96761703e-4F);
  near = near * s + 4.99119423e-3F;
  near = near * s - 2.67681349e-2F;
  near = near * s + 1.12819925e-1F;
  near = near * s - 3.76125336e-1F;
  near = near * s + 1.28379166e-1F;
  near = near * x + x;
  return t > 0.927734375F ? far : near;
}

/// Sine (quadrant 0) or cosine (quadrant 1) after subtracting multiples of pi / 2 in three parts,
/// with Cephes' polynomials. Arguments beyond 8192 go to the C library.
template <int kQuadrant>
[[gnu::always_inline]] inline F32 sine_or_cosine(F32 x) {
  const F32 n = __builtin_elementwise_roundeven(x * 0.636619772367581343F);
  F32 r = x - n * 1.5703125F;
  r = r - n * 4.837512969970703125e-4F;
  r = r - n * 7.549789948768648e-8F;
  const F32 z = r * r;
  F32 sine = splat<F32>(-1.9515295891e-4F);
  sine = sine * z + 8.3321608736e-3F;
  sine = sine * z - 1.6666654611e-1F;
  sine = sine * z * r + r;
  F32 cosine = splat<F32>(2.443315711809948e-5F);
  cosine = cosine * z - 1.388731625493765e-3F;
  cosine = cosine * z + 4.166664568298827e-2F;
  cosine = cosine * z * z - z * 0.5F + 1.0F;
  const I32 quadrant = __builtin_convertvector(n, I32) + kQuadrant;
  const F32 value = (quadrant & 1) != 0 ? cosine : sine;
  F32 result = (quadrant & 2) != 0 ? -value : value;
  for (int lane = 0; lane < 16; ++lane) {
    if (!(x[lane] > -8192.0F && x[lane] < 8192.0F)) {
      result[lane] = kQuadrant == 0 ? std::sin(x[lane]) : std::cos(x[lane]);
    }
  }
  return result;
}

[[gnu::always_inline]] inline F32 sin(F32 x) { return sine_or_cosine<0>(x); }
[[gnu::always_inline]] inline F32 cos(F32 x) { return sine_or_cosine<1>(x); }

[[gnu::always_inline]] inline F64 log(F64 x) {
  return each_lane(x, [](double lane) { return std::log(lane); });
}
[[gnu::always_inline]] inline F64 tanh(F64 x) {
  return each_lane(x, [](double lane) { return std::tanh(lane); });
}
[[gnu::always_inline]] inline F64 erf(F64 x) {
  return each_lane(x, [](double lane) { return std::erf(lane); });
}
[[gnu::always_inline]] inline F64 sin(F64 x) {
  return each_lane(x, [](double lane) { return std::sin(lane); });
}
[[gnu::always_inline]] inline F64 cos(F64 x) {
  return each_lane(x, [](double lane) { return std::cos(lane); });
}
template <class V>
[[gnu::always_inline]] inline V log1p(V x) {
  return each_lane(x, [](auto lane) { return std::log1p(lane); });
}
template <class V>
[[gnu::always_inline]] inline V expm1(V x) {
  return each_lane(x, [](auto lane) { return std::expm1(lane); });
}

}  // namespace tessera::kernels::simd
