// plugins/cuda/kernels/mma.hpp for the emulator.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <tessera/half.hpp>
#include <type_traits>

// The same as emulator_copy_async of 4 bytes.
extern "C" void emulator_copy_number_async(void* to, const void* from, bool exists);

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

inline float power_of_2(float x) {
  const float power = std::exp2(x);
  return power < std::numeric_limits<float>::min() ? 0 : power;
}

inline void copy_async(void* to, const void* from, bool exists) {
  emulator_copy_async(to, from, exists);
}

inline void copy_number_async(float* to, const float* from, bool exists) {
  emulator_copy_number_async(to, from, exists);
}

inline void wait_for_copies() { emulator_wait_for_copies(); }

inline void end_group_of_copies() { emulator_end_group_of_copies(); }

template <int left>
inline void wait_for_groups() {
  emulator_wait_for_groups(left);
}

inline void* launched_memory() { return emulator_launched_memory(); }

}  // namespace tessera::cuda
