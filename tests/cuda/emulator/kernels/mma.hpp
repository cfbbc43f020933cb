// plugins/cuda/kernels/mma.hpp for the emulator.
#pragma once
#include <cstdint>
#include <tessera/half.hpp>
#include <type_traits>

namespace tessera::cuda {

using kernels::BFloat16;
using kernels::Half;

inline void load_matrices(std::uint32_t (&words)[4], const void* row) {
  emulator_load_matrices(words, row, false);
}

inline void load_transposed(std::uint32_t (&words)[4], const void* row) {
  emulator_load_matrices(words, row, true);
}

template <class T>
inline void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>);
  const std::uint32_t b[2] = {b0, b1};
  emulator_multiply_matrices(sums, a, b, std::is_same_v<T, BFloat16>);
}

template <class T>
inline std::uint32_t pack(float low, float high) {
  return T(low).bits | static_cast<std::uint32_t>(T(high).bits) << 16;
}

inline float widened(Half x) { return static_cast<float>(x); }

inline void store_words(void* at, const std::uint32_t (&words)[4]) {
  *static_cast<uint4*>(at) = uint4{words[0], words[1], words[2], words[3]};
}

inline void copy_async(void* to, const void* from, bool exists) {
  emulator_copy_async(to, from, exists);
}

inline void wait_for_copies() { emulator_wait_for_copies(); }

}  // namespace tessera::cuda
