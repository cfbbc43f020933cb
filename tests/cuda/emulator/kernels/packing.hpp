// plugins/cuda/kernels/packing.hpp for the emulator.
#pragma once
#include <cstdint>
#include <tessera/float8.hpp>
#include <tessera/half.hpp>
#include <type_traits>

namespace tessera::cuda {

template <class T>
inline std::uint32_t rounded_pair(float low, float high) {
  const auto one = [](float x) -> std::uint32_t { return x != x ? 0x7fffU : T(x).bits; };
  return one(low) | one(high) << 16;
}

template <class T>
inline std::uint32_t rounded_codes(float low, float high) {
  constexpr float most = std::is_same_v<T, kernels::Float8E4M3> ? 448.0F : 57344.0F;
  const auto one = [](float x) -> std::uint32_t {
    return x != x ? 0x7fU : T(x > most ? most : x < -most ? -most : x).bits;
  };
  return one(low) | one(high) << 8;
}

inline float widened(kernels::Half x) { return static_cast<float>(x); }

inline void store_words(void* at, const std::uint32_t (&words)[4]) {
  *static_cast<uint4*>(at) = uint4{words[0], words[1], words[2], words[3]};
}

}  // namespace tessera::cuda
