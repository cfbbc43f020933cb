// Kernels that test the emulator: right ones, and ones with one fault each.
#include <cstddef>

#include "../../tests/cuda/probe.hpp"
#include "kernels/mma.hpp"
#include "kernels/packing.hpp"

using tessera::cuda::BFloat16;
using tessera::cuda::rounded_pair;

namespace {

/// A row of a matrix of 8 columns.
struct alignas(16) MatrixRow {
  std::uint32_t words[4];
};

__device__ std::int64_t place() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

}  // namespace

extern "C" {

__global__ void probe_double(const Probe a) {
  const std::int64_t i = place();
  if (i < a.count) a.to[i] = 2 * a.from[i];
}

/// Adds 1: orders of streams show in the result.
__global__ void probe_increment(const Probe a) {
  const std::int64_t i = place();
  if (i < a.count) a.to[i] += 1;
}

/// The same; nothing else launches it.
__global__ void probe_first(const Probe a) {
  const std::int64_t i = place();
  if (i < a.count) a.to[i] += 1;
}

__global__ void probe_list(const ProbeList a) {
  const std::int64_t i = place();
  if (i >= a.count) return;
  float sum = 0;
  for (std::int64_t k = 0; k < a.arrays; ++k) sum += a.from[k][i];
  a.to[i] = sum;
}

/// Each block reverses its 64 elements through shared memory.
__global__ void probe_reverse(const Probe a) {
  __shared__ float tile[64];
  tile[threadIdx.x] = a.from[place()];
  __syncthreads();
  a.to[place()] = tile[63 - threadIdx.x];
}

/// The sum of each warp's 32 elements, by shuffles.
__global__ void probe_warp_sum(const Probe a) {
  float sum = a.from[place()];
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0U, sum, by);
  const unsigned positive = __ballot_sync(~0U, a.from[place()] > 0);
  if (threadIdx.x % 32 == 0) {
    a.to[2 * (place() / 32)] = sum;
    a.to[2 * (place() / 32) + 1] = static_cast<float>(positive >> 16);
  }
}

/// The lanes of a warp pass values on through shared memory, in order by __syncwarp.
__global__ void probe_warp_order(const Probe a) {
  __shared__ float lanes[32];
  lanes[threadIdx.x] = a.from[threadIdx.x];
  __syncwarp();
  const float next = lanes[(threadIdx.x + 1) % 32];
  __syncwarp();
  lanes[threadIdx.x] = next;
  a.to[threadIdx.x] = lanes[threadIdx.x];
}

/// A product of a [16, 16] and b [16, 8], which follow each other in `from`; the fragments are
/// filled element by element, as PTX's documentation of mma.m16n8k16 says. `to` gets 16 x 8 sums.
__global__ void probe_product(const Probe a) {
  const int lane = threadIdx.x, group = lane / 4, pair = lane % 4 * 2;
  const float* const b = a.from + 256;
  const auto of_a = [&](int row, int column) {
    return rounded_pair<BFloat16>(a.from[16 * row + column], a.from[16 * row + column + 1]);
  };
  const auto of_b = [&](int row, int column) {
    return rounded_pair<BFloat16>(b[8 * row + column], b[8 * (row + 1) + column]);
  };
  const std::uint32_t words[4] = {of_a(group, pair), of_a(group + 8, pair), of_a(group, pair + 8),
                                  of_a(group + 8, pair + 8)};
  float sums[4] = {};
  tessera::cuda::multiply_add<BFloat16>(sums, words, of_b(pair, group), of_b(pair + 8, group));
  a.to[8 * group + pair] = sums[0];
  a.to[8 * group + pair + 1] = sums[1];
  a.to[8 * (group + 8) + pair] = sums[2];
  a.to[8 * (group + 8) + pair + 1] = sums[3];
}

/// Four matrices of 8 x 8, one after the other in `from`, by ldmatrix; `to` gets the words'
/// elements where the fragment of a matrix (first half: as it is; second half: transposed) has
/// them.
__global__ void probe_matrices(const Probe a) {
  __shared__ MatrixRow rows[32];
  const int lane = threadIdx.x, group = lane / 4, pair = lane % 4 * 2;
  for (int word = 0; word < 4; ++word) {
    rows[lane].words[word] =
        rounded_pair<BFloat16>(a.from[8 * lane + 2 * word], a.from[8 * lane + 2 * word + 1]);
  }
  __syncwarp();
  std::uint32_t plain[4], turned[4];
  tessera::cuda::load_matrices(plain, &rows[lane]);
  tessera::cuda::load_transposed(turned, &rows[lane]);
  const auto element = [](std::uint32_t word, int high) {
    return static_cast<float>(BFloat16::from_bits(static_cast<std::uint16_t>(word >> 16 * high)));
  };
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int high = 0; high < 2; ++high) {
      a.to[64 * matrix + 8 * group + pair + high] = element(plain[matrix], high);
      a.to[256 + 64 * matrix + 8 * (pair + high) + group] = element(turned[matrix], high);
    }
  }
}

/// The elements of a block, through shared memory by copies of 16 bytes, in reverse; zeros where
/// there are none.
__global__ void probe_copies(const Probe a) {
  __shared__ MatrixRow rows[32];
  const std::int64_t first = 4 * std::int64_t{threadIdx.x};
  tessera::cuda::copy_async(&rows[threadIdx.x], a.from + (first < a.count ? first : 0),
                            first < a.count);
  tessera::cuda::wait_for_copies();
  __syncthreads();
  const auto* const numbers = reinterpret_cast<const float*>(rows);
  for (int i = 0; i < 4; ++i) a.to[first + i] = numbers[127 - first - i];
}

/// Numbers in the opposite order, zeros from number `count` on.
__global__ void probe_copied_numbers(const Probe a) {
  auto* const numbers = static_cast<float*>(tessera::cuda::launched_memory());
  const bool exists = threadIdx.x < a.count;
  tessera::cuda::copy_number_async(numbers + threadIdx.x, a.from + (exists ? threadIdx.x : 0),
                                   exists);
  tessera::cuda::wait_for_copies();
  __syncthreads();
  a.to[threadIdx.x] = numbers[31 - threadIdx.x];
}

/// Copies in two groups, of which the first is used while the second is under way.
__global__ void probe_groups_of_copies(const Probe a) {
  auto* const rows = static_cast<MatrixRow*>(tessera::cuda::launched_memory());
  const unsigned other = 31 - threadIdx.x;
  for (unsigned group = 0; group < 2; ++group) {
    tessera::cuda::copy_async(&rows[32 * group + threadIdx.x],
                              a.from + 4 * (32 * group + threadIdx.x), true);
    tessera::cuda::end_group_of_copies();
  }
  tessera::cuda::wait_for_groups<1>();
  __syncthreads();
  a.to[threadIdx.x] = reinterpret_cast<const float*>(&rows[other])[0];
  tessera::cuda::wait_for_groups<0>();
  __syncthreads();
  a.to[32 + threadIdx.x] = reinterpret_cast<const float*>(&rows[32 + other])[0];
}

__global__ void probe_count(const Probe a) { atomicAdd(a.to, 1.0F); }

// ---- with a fault ----

__global__ void probe_missing_barrier(const Probe a) {
  __shared__ float tile[64];
  tile[threadIdx.x] = a.from[place()];
  a.to[place()] = tile[63 - threadIdx.x];
}

/// Overwrites what other threads still read.
__global__ void probe_second_missing_barrier(const Probe a) {
  __shared__ float tile[64];
  float sum = 0;
  for (int round = 0; round < 2; ++round) {
    tile[threadIdx.x] = a.from[place()] + static_cast<float>(round);
    __syncthreads();
    sum += tile[63 - threadIdx.x];
  }
  a.to[place()] = sum;
}

__global__ void probe_missing_warp_barrier(const Probe a) {
  __shared__ float lanes[32];
  lanes[threadIdx.x] = a.from[threadIdx.x];
  a.to[threadIdx.x] = lanes[(threadIdx.x + 1) % 32];
}

__global__ void probe_divergent_barrier(const Probe a) {
  if (threadIdx.x < 32) __syncthreads();
  a.to[place()] = a.from[place()];
}

__global__ void probe_two_barriers(const Probe a) {
  if (threadIdx.x < 32) {
    __syncthreads();
    a.to[place()] = a.from[place()];
  } else {
    __syncthreads();
    a.to[place()] = -a.from[place()];
  }
}

__global__ void probe_missing_limit(const Probe a) { a.to[place()] = a.from[place()]; }

/// Two blocks write each element.
__global__ void probe_wrong_stride(const Probe a) {
  const std::int64_t i = std::int64_t{blockIdx.x} * (blockDim.x / 2) + threadIdx.x;
  a.to[i] = a.from[i];
}

/// Threads of half a warp, and a mask of a whole one.
__global__ void probe_wrong_mask(const Probe a) {
  if (threadIdx.x < 16) a.to[threadIdx.x] = __shfl_xor_sync(~0U, a.from[threadIdx.x], 1);
}

/// A mask without the lane that calls.
__global__ void probe_foreign_mask(const Probe a) {
  a.to[threadIdx.x] = __shfl_xor_sync(0xffffU, a.from[threadIdx.x], 1);
}

/// The address of an array, from memory.
__global__ void probe_address_in_memory(const Probe a) {
  const float* const* addresses = reinterpret_cast<const float* const*>(a.from);
  a.to[0] = addresses[0][0];
}

/// Reads what other threads have copied, which they have not waited for.
__global__ void probe_copies_without_wait(const Probe a) {
  __shared__ MatrixRow rows[32];
  tessera::cuda::copy_async(&rows[threadIdx.x], a.from + 4 * threadIdx.x, true);
  __syncthreads();
  a.to[threadIdx.x] = static_cast<float>(rows[31 - threadIdx.x].words[0]);
}

/// Waits, but has no barrier.
__global__ void probe_copies_without_barrier(const Probe a) {
  __shared__ MatrixRow rows[32];
  tessera::cuda::copy_async(&rows[threadIdx.x], a.from + 4 * threadIdx.x, true);
  tessera::cuda::wait_for_copies();
  a.to[threadIdx.x] = static_cast<float>(rows[31 - threadIdx.x].words[0]);
}

/// Uses the second group of copies, though it has waited for the first only.
__global__ void probe_group_without_wait(const Probe a) {
  auto* const rows = static_cast<MatrixRow*>(tessera::cuda::launched_memory());
  for (unsigned group = 0; group < 2; ++group) {
    tessera::cuda::copy_async(&rows[32 * group + threadIdx.x], a.from + 4 * threadIdx.x, true);
    tessera::cuda::end_group_of_copies();
  }
  tessera::cuda::wait_for_groups<1>();
  __syncthreads();
  a.to[threadIdx.x] = reinterpret_cast<const float*>(&rows[32 + threadIdx.x / 2])[0];
  tessera::cuda::wait_for_groups<0>();
}

/// Threads exchange values in the launch's memory without a barrier.
__global__ void probe_launched_memory_without_barrier(const Probe a) {
  auto* const values = static_cast<float*>(tessera::cuda::launched_memory());
  values[threadIdx.x] = a.from[threadIdx.x];
  a.to[threadIdx.x] = values[31 - threadIdx.x];
}

/// Overwrites a matrix that ldmatrix of other threads reads.
__global__ void probe_matrices_without_barrier(const Probe a) {
  __shared__ MatrixRow rows[32];
  rows[threadIdx.x].words[0] = 0;
  std::uint32_t words[4];
  tessera::cuda::load_matrices(words, &rows[31 - threadIdx.x]);
  a.to[threadIdx.x] = static_cast<float>(words[0]);
}

/// Half a warp multiplies.
__global__ void probe_product_of_half_a_warp(const Probe a) {
  const std::uint32_t words[4] = {};
  float sums[4] = {};
  if (threadIdx.x < 16) tessera::cuda::multiply_add<BFloat16>(sums, words, 0, 0);
  a.to[threadIdx.x] = sums[0];
}

/// The lanes are in a load and in a product.
__global__ void probe_two_operations_on_matrices(const Probe a) {
  __shared__ MatrixRow rows[32];
  rows[threadIdx.x].words[0] = 0;
  std::uint32_t words[4] = {};
  float sums[4] = {};
  if (threadIdx.x < 16) {
    tessera::cuda::multiply_add<BFloat16>(sums, words, 0, 0);
  } else {
    tessera::cuda::load_matrices(words, &rows[threadIdx.x]);
  }
  a.to[threadIdx.x] = sums[0];
}

/// A row that does not begin at a multiple of 16 bytes.
__global__ void probe_unaligned_row(const Probe a) {
  __shared__ MatrixRow rows[33];
  std::uint32_t words[4];
  tessera::cuda::load_matrices(words, reinterpret_cast<std::byte*>(&rows[threadIdx.x]) + 8);
  a.to[threadIdx.x] = static_cast<float>(words[0]);
}

/// 16 bytes at a multiple of 4.
__global__ void probe_unaligned_word(const Probe a) {
  if (threadIdx.x < 4) {
    reinterpret_cast<uint4*>(a.to)[threadIdx.x] =
        reinterpret_cast<const uint4*>(a.from + 1)[threadIdx.x];
  }
}

__global__ void probe_unordered_sum(const Probe a) { *a.to += a.from[place()]; }

/// One thread writes what the others read.
__global__ void probe_read_and_written(const Probe a) {
  if (place() == 5) {
    *a.to = 1;
  } else {
    a.to[place() + 1] = *a.to;
  }
}

}  // extern "C"
