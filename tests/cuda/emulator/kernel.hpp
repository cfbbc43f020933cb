// The language of kernels for the emulator: with this header before it (clang's -include), a .cu
// file is C++. Beyond it, a kernel sees plain headers only. What is not here is an error of the
// compiler: add it here, and its meaning to the emulator, when a kernel needs it.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define __host__
#define __device__
#define __constant__ static const
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __global__ __attribute__((visibility("default")))
// One block runs at a time, so its shared memory is static. The section is filled before each
// block.
#define __shared__ static __attribute__((section("emulated_shared")))

struct uint3 {
  unsigned x, y, z;
};
// They are loaded and stored as one.
using uint2 = unsigned __attribute__((ext_vector_type(2)));
using uint4 = unsigned __attribute__((ext_vector_type(4)));
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

extern "C" {
extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;

// A barrier is known by the place of its call, of which the compiler must make neither two nor one
// of two.
[[clang::noduplicate, clang::nomerge, clang::convergent]] void emulator_barrier(void);
[[clang::convergent]] void emulator_warp_barrier(unsigned mask);
[[clang::convergent]] std::uint64_t emulator_shuffle(unsigned mask, std::uint64_t value,
                                                     unsigned from_lane);
[[clang::convergent]] unsigned emulator_ballot(unsigned mask, int truth);
unsigned emulator_lane(void);
// Operations of a whole warp on matrices (matrix.hpp): `row` has 16 bytes.
[[clang::convergent]] void emulator_load_matrices(std::uint32_t* words, const void* row,
                                                  bool transposed);
/// a has 4 words, b 2; `bf16`: or f16.
[[clang::convergent]] void emulator_multiply_matrices(float* sums, const std::uint32_t* a,
                                                      const std::uint32_t* b, bool bf16);
/// 16 bytes, which are there when the thread has waited; or zeros.
void emulator_copy_async(void* to, const void* from, bool exists);
void emulator_wait_for_copies(void);
/// Checks that an atomic operation may use the address.
void emulator_atomic(const void* address, unsigned bytes);
}

inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }

inline constexpr int warpSize = 32;

__forceinline__ void __syncthreads() { emulator_barrier(); }
inline void __syncwarp(unsigned mask = ~0U) { emulator_warp_barrier(mask); }
inline unsigned __ballot_sync(unsigned mask, int truth) { return emulator_ballot(mask, truth); }
inline int __any_sync(unsigned mask, int truth) { return emulator_ballot(mask, truth) != 0; }
inline int __all_sync(unsigned mask, int truth) { return emulator_ballot(mask, truth) == mask; }

template <class T>
inline T emulated_shuffle(unsigned mask, T value, unsigned from_lane) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = emulator_shuffle(mask, bits, from_lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
// Lanes in groups of `width`; where the lane to read is outside of the group, a lane reads its own.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  const unsigned own = emulator_lane(), w = static_cast<unsigned>(width);
  return emulated_shuffle(mask, value, (own & ~(w - 1)) + (static_cast<unsigned>(lane) & (w - 1)));
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
  const unsigned own = emulator_lane(), other = own ^ static_cast<unsigned>(with);
  const bool inside = other / static_cast<unsigned>(width) == own / static_cast<unsigned>(width);
  return emulated_shuffle(mask, value, inside ? other : own);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned own = emulator_lane(), w = static_cast<unsigned>(width);
  return emulated_shuffle(mask, value, own % w + by < w ? own + by : own);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned own = emulator_lane(), w = static_cast<unsigned>(width);
  return emulated_shuffle(mask, value, own % w >= by ? own - by : own);
}

// The threads of a block run one at a time, so an atomic operation is a plain one.
template <class T>
[[gnu::noinline, clang::no_sanitize("coverage")]] inline T emulated_exchange(T* at, T value) {
  emulator_atomic(at, sizeof(T));
  const T before = *at;
  *at = value;
  return before;
}
template <class T>
[[gnu::noinline, clang::no_sanitize("coverage")]] inline T atomicAdd(
    T* at, std::type_identity_t<T> value) {
  emulator_atomic(at, sizeof(T));
  const T before = *at;
  *at = before + value;
  return before;
}
inline unsigned atomicExch(unsigned* at, unsigned value) { return emulated_exchange(at, value); }
template <class T>
[[gnu::noinline, clang::no_sanitize("coverage")]] inline T atomicCAS(
    T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  emulator_atomic(at, sizeof(T));
  const T before = *at;
  if (before == expected) *at = value;
  return before;
}
