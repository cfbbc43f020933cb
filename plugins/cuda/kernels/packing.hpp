// Several numbers at once, by PTX: rounded, widened, stored. The emulator has a header of the same
// name, which is found in place of this one (docs/emulator.md).
#pragma once
#include <cstdint>
#include <tessera/float8.hpp>
#include <tessera/half.hpp>
#include <type_traits>

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

/// Two floats as 8-bit codes of T, the first one in the lower byte of 16 bits: rounded to nearest
/// even, and at most the largest number of T. A NaN becomes 0x7f. GPUs before sm_89 have no
/// instruction for it.
template <class T>
__device__ std::uint32_t rounded_codes(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t codes = 0;
  if constexpr (std::is_same_v<T, kernels::Float8E4M3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  }
  return codes;
#else
  constexpr float most = std::is_same_v<T, kernels::Float8E4M3> ? 448.0F : 57344.0F;
  const auto one = [](float x) -> std::uint32_t {
    return x != x ? 0x7fU : T(x > most ? most : x < -most ? -most : x).bits;
  };
  return one(low) | one(high) << 8;
#endif
}

inline __device__ float widened(kernels::Half x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
}

/// Stores 16 bytes of the device's memory at once; the compiler makes four stores of others that
/// are in a branch.
inline __device__ void store_words(void* at, const std::uint32_t (&words)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(at)),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace tessera::cuda
