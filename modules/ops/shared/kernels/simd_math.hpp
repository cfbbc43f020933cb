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

/// The maximum and minimum that are NaN where an operand is NaN, of vectors or of numbers.
template <class V>
[[gnu::always_inline]] inline V larger(V a, V b) {
  return a != a ? a : (a > b ? a : b);  // b where b is NaN
}
template <class V>
[[gnu::always_inline]] inline V smaller(V a, V b) {
  return a != a ? a : (a < b ? a : b);
}

template <Floats V>
using Unsigned = std::uint32_t __attribute__((vector_size(sizeof(V))));

/// Cephes' polynomial (logf): log(1 + m) = m - m^2 / 2 + m^3 p(m), 1 + m in [sqrt(1/2), sqrt(2)).
template <Floats V>
[[gnu::always_inline]] inline V log_polynomial(V m) {
  V p = splat<V>(7.0376836292e-2F);
  p = p * m - 1.1514610310e-1F;
  p = p * m + 1.1676998740e-1F;
  p = p * m - 1.2420140846e-1F;
  p = p * m + 1.4249322787e-1F;
  p = p * m - 1.6668057665e-1F;
  p = p * m + 2.0000714765e-1F;
  p = p * m - 2.4999993993e-1F;
  return p * m + 3.3333331174e-1F;
}

/// log(x) = e log 2 + log(1 + m).
template <Floats V>
[[gnu::always_inline]] inline V log(V x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // Subnormals are brought into the normal range.
  const auto tiny = x < std::numeric_limits<float>::min();
  const V scaled = tiny ? x * 0x1p23F : x;
  const auto raw = bits_as<Unsigned<V>>(scaled) - 0x3f3504f3U;  // sqrt(1/2)
  const V exponent = __builtin_convertvector(bits_as<Integers<V>>(raw) >> 23, V);
  const V e = tiny ? exponent - 23.0F : exponent;
  const V m = bits_as<V>((raw & 0x007fffffU) + 0x3f3504f3U) - 1.0F;
  const V p = log_polynomial(m);
  const V square = m * m;
  V y = p * m * square;
  y = y + e * -2.12194440e-4F;
  y = y - square * 0.5F;
  V result = m + y + e * 0.693359375F;
  result = x == kInfinity ? x : result;
  result = x == 0.0F ? splat<V>(-kInfinity) : result;
  return x >= 0.0F ? result : splat<V>(std::numeric_limits<float>::quiet_NaN());
}

/// Cephes' polynomial (tanhf) near 0, else (1 - e) / (1 + e), e = exp(-2 |x|).
template <Floats V>
[[gnu::always_inline]] inline V tanh(V x) {
  const V z = x * x;
  V p = splat<V>(-5.70498872745e-3F);
  p = p * z + 2.06390887954e-2F;
  p = p * z - 5.37397155531e-2F;
  p = p * z + 1.33314422036e-1F;
  p = p * z - 3.33332819422e-1F;
  const V near = x + x * (z * p);
  const V magnitude = abs(x);
  const V e = exp_nonpositive(-2.0F * magnitude);
  const V far = copy_sign((1.0F - e) / (1.0F + e), x);
  return magnitude < 0.625F ? near : far;
}

/// Two minimax polynomials, by N. Juffa ("faithfully-rounded error function", 2016).
template <Floats V>
[[gnu::always_inline]] inline V erf(V x) {
  const V t = abs(x);
  const V s = x * x;
  V far = t * -1.72853470e-5F + 3.83197126e-4F;
  far = far * s + (t * -3.88396438e-3F + 2.42546219e-2F);
  far = far * t - 1.06777877e-1F;
  far = far * t - 6.34846687e-1F;
  far = far * t - 1.28717512e-1F;
  far = far * t - t;
  far = copy_sign(1.0F - exp_nonpositive(far), x);  // -16 or more where it is used
  far = t > 4.0F ? copy_sign(splat<V>(1.0F), x) : far;
  V near = splat<V>(-5.96761703e-4F);
  near = near * s + 4.99119423e-3F;
  near = near * s - 2.67681349e-2F;
  near = near * s + 1.12819925e-1F;
  near = near * s - 3.76125336e-1F;
  near = near * s + 1.28379166e-1F;
  near = near * x + x;
  return t > 0.927734375F ? far : near;
}

/// The probability that a standard normal value is above t >= 0: erfc(t / sqrt(2)) / 2. It is
/// 2^(t p(t) - 1), where p's absolute error is least, weighted by the result; relative error about
/// 2e-7 up to 1, 2e-6 up to 4; 0 above 6, where it is below 1e-9.
template <Floats V>
[[gnu::always_inline]] inline V normal_tail(V t) {
  V p = splat<V>(-0x1.4e6ee0p-26F);
  p = p * t + 0x1.4dedc6p-21F;
  p = p * t - 0x1.1c736ep-17F;
  p = p * t + 0x1.058220p-14F;
  p = p * t - 0x1.e88410p-13F;
  p = p * t - 0x1.813814p-14F;
  p = p * t + 0x1.ce1c26p-8F;
  p = p * t - 0x1.ae1f36p-5F;
  p = p * t - 0x1.d63936p-2F;
  p = p * t - 0x1.26aee0p+0F;
  const V exponent = p * t - 1.0F;
  const V n = __builtin_elementwise_roundeven(exponent);
  const V rest = (exponent - n) * 0.693147181F;
  const V result = exp_of_rest(rest) * power_of_two<V>(__builtin_convertvector(n, Integers<V>));
  return t > 6.0F ? V{} : result;
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
[[gnu::always_inline]] inline F64 normal_tail(F64 t) {
  return each_lane(t, [](double lane) { return std::erfc(lane * 0.70710678118654752440) / 2; });
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
