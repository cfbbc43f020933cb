#pragma once
// The exponential of the distance to a maximum.

#include "shared/kernels/simd.hpp"

namespace tessera::kernels::simd {

/// exp(x) for x <= 0 or NaN, 0 below -87: two thirds of the instructions of exp, whose polynomial
/// it has.
[[gnu::always_inline]] inline F32 exp_of_difference(F32 x) {
  constexpr float kRound = 0x1.8p23F;  // a sum with it is rounded to an integer, in its low bits
  const F32 clamped = maximum(splat<F32>(-87.0F), x);  // NaN stays
  const F32 shifted = clamped * 1.44269504088896341F + kRound;
  const F32 n = shifted - kRound;
  F32 r = clamped - n * 0.693359375F;
  r = r - n * -2.12194440e-4F;
  F32 p = splat<F32>(1.9875691500e-4F);
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const F32 power = bits_as<F32>((bits_as<I32>(shifted) << 23) + 0x3f800000);
  return x < -87.0F ? F32{} : p * power;
}

[[gnu::always_inline]] inline F64 exp_of_difference(F64 x) { return exp(x); }

}  // namespace tessera::kernels::simd
