// Tensor cores by PTX (sm_80 and later). All 32 lanes of a warp call these functions together. The
// emulator has a header of the same name, which is found in place of this one (docs/emulator.md).
//
// A matrix is spread over the lanes in fragments, as PTX defines them. In words of two elements of
// 16 bits, with g = lane / 4 and t = lane % 4:
//   a, 16 x 16: rows g, g + 8, g, g + 8; columns 2t and 2t + 1, in the last two words 8 more
//   b, 16 x 8: rows 2t and 2t + 1, in the second word 8 more; column g
// The sums, 16 x 8 floats: row g, columns 2t and 2t + 1; row g + 8, the same columns.
#pragma once
#include <cstdint>
#include <tessera/half.hpp>

namespace tessera::cuda {

using kernels::BFloat16;
using kernels::Half;

/// The address in shared memory of what a generic pointer points to.
inline __device__ std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

/// Four 8 x 8 matrices of 16-bit elements from shared memory: lane 8 i + j has the address of row j
/// of matrix i, 16 bytes. Word i is of matrix i: row g, columns 2t and 2t + 1; transposed: rows 2t
/// and 2t + 1 of column g.
#define LOAD(name, transposed)                                                                    \
  inline __device__ void name(std::uint32_t(&words)[4], const void* row) {                        \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" transposed ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])                 \
                 : "r"(shared_address(row))                                                       \
                 : "memory");                                                                     \
  }
LOAD(load_matrices, "")
LOAD(load_transposed, ".trans")
#undef LOAD

/// sums += a b, in f32.
template <class T>
__device__ void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                             std::uint32_t b1);

#define MULTIPLY_ADD(T, type)                                                         \
  template <>                                                                         \
  inline __device__ void multiply_add<T>(float(&sums)[4], const std::uint32_t(&a)[4], \
                                         std::uint32_t b0, std::uint32_t b1) {        \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                        \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"        \
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                  \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));              \
  }
MULTIPLY_ADD(BFloat16, "bf16")
MULTIPLY_ADD(Half, "f16")
#undef MULTIPLY_ADD

/// 2 to the power of x, as near as exp2f; 0 instead of a number without its first bits.
inline __device__ float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

/// Begins to copy 16 bytes from the device's memory to shared memory, or zeros where there is
/// nothing to copy (`from` must be an address all the same). Both addresses are multiples of 16.
inline __device__ void copy_async(void* to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}

/// The same of one number of 4 bytes.
inline __device__ void copy_number_async(float* to, const float* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(exists ? 4 : 0)
               : "memory");
}

/// Waits for this thread's copies; a barrier makes them visible to the others.
inline __device__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// The copies that this thread has begun since the last call, or none, are a group.
inline __device__ void end_group_of_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits for all groups of this thread but the last `left`.
template <int left>
__device__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/// A block's shared memory of the size that its launch gives, at a multiple of 16 bytes. A kernel
/// that uses it has no other.
inline __device__ void* launched_memory() {
  extern __shared__ __align__(16) unsigned char memory_of_launch[];
  return memory_of_launch;
}

}  // namespace tessera::cuda
