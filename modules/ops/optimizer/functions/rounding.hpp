#pragma once
// Rounding of f32 to bf16 with random bits, for any compiler: U is a 32-bit word, or a vector of
// them.

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// The bf16 (in the lower 16 bits) that the f32 of these bits becomes with `noise`, a uniform
/// number of 16 bits: the lower half of the f32 plus the noise carries into the upper half or not.
/// So the magnitude becomes one of its two neighbours in bf16, the upper one with a probability
/// that is its distance from the lower one in units of theirs; a number that bf16 has stays. A NaN
/// stays one.
template <class U>
constexpr U stochastic_bf16(U bits, U noise) {
  const U carried = (bits + noise) >> 16;
  const U of_nan = (bits >> 16) | 0x40U;
  return (bits & 0x7fffffffU) > 0x7f800000U ? of_nan : carried;
}

/// Numbers that an element takes: two words, whose four halves, the lower one first, are the noise
/// of the parameter and of its states in their order.
inline constexpr int rounding_words = 2;

}  // namespace tessera::functions

#pragma clang attribute pop
