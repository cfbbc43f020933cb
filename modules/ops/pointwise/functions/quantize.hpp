#pragma once
// Scales of 8-bit floating codes, for any compiler.

#include <cstdint>

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// The scale of numbers whose largest magnitude is `amax`: `most` / max(amax, 1e-12), computed in
/// f64; with `powers_of_two` rounded down to one. Source: torchao, float8_utils.py.
constexpr float scale_for(float amax, float most, bool powers_of_two) {
  constexpr double least = 1e-12;  // against a division by 0
  const double divisor = amax < least ? least : static_cast<double>(amax);
  const auto scale = static_cast<float>(static_cast<double>(most) / divisor);
  // A power of two has no fraction; NaN stays.
  return powers_of_two && scale == scale
             ? __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, scale) & 0xff800000U)
             : scale;
}

/// What is rounded to a code: x times its scale, cut off at the largest number of the type. NaN
/// stays.
template <class T>
constexpr T scaled_and_cut(T x, T scale, T most) {
  const T value = x * scale;
  return value > most ? most : value < -most ? -most : value;
}

}  // namespace tessera::functions

#pragma clang attribute pop
