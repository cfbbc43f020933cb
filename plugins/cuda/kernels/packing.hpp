// Rounding of two floats at once, by PTX. The emulator has a header of the same name, which is
// found in place of this one (docs/emulator.md).
#pragma once
#include <cstdint>
#include <tessera/float8.hpp>
#include <tessera/half.hpp>

namespace tessera::cuda {

/// Two floats as elements of 16 bits, the first one in the lower half of the word: rounded to
/// nearest even. A NaN becomes 0x7fff, other than convert() has it.
template <class T>
__device__ std::uint32_t rounded_pair(float low, float high);

template <>
inline __device__ std::uint32_t rounded_pair<kernels::BFloat16>(float low, float high) {
  std::uint32_t word = 0;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
template <>
inline __device__ std::uint32_t rounded_pair<kernels::Half>(float low, float high) {
  std::uint32_t word = 0;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

}  // namespace tessera::cuda
