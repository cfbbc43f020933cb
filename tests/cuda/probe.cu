// Kernels that test the emulator: right ones, and ones with one fault each.
#include "../../tests/cuda/probe.hpp"

namespace {

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

__global__ void probe_unordered_sum(const Probe a) { *a.to += a.from[place()]; }

}  // extern "C"
