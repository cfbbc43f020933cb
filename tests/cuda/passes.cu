// Kernels whose loops are known, for passes.pl.
#include <cstdint>

struct Arrays {
  const void* x;
  void* y;
  std::int64_t count;
};

extern "C" {

// Four vectors of 16 bytes are asked for before the first one is used.
__global__ void four_vectors_f32(const Arrays a) {
  const auto* const x = static_cast<const float4*>(a.x);
  auto* const y = static_cast<float4*>(a.y);
#pragma unroll 1
  for (std::int64_t i = threadIdx.x; i < a.count; i += 1024) {
    float4 part[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) part[k] = x[i + 256 * k];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      y[i + 256 * k] = make_float4(2 * part[k].x, 2 * part[k].y, 2 * part[k].z, 2 * part[k].w);
    }
  }
}

// One element of 2 bytes at a time.
__global__ void halves_bf16(const Arrays a) {
  const auto* const x = static_cast<const unsigned short*>(a.x);
  float sum = 0;
#pragma unroll 1
  for (std::int64_t i = threadIdx.x; i < a.count; i += 256) {
    sum += __int_as_float(static_cast<int>(x[i]) << 16);
  }
  static_cast<float*>(a.y)[threadIdx.x] = sum;
}

// Each of four loads needs the one before.
__global__ void chain_f32(const Arrays a) {
  const auto* const x = static_cast<const int*>(a.x);
  int at = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (std::int64_t i = 0; i < a.count; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) at = x[at];
  }
  static_cast<int*>(a.y)[threadIdx.x] = at;
}

// A row is read twice, and what is left of it by single elements.
__global__ void two_passes_f32(const Arrays a) {
  const auto* const x = static_cast<const float*>(a.x);
  auto* const y = static_cast<float*>(a.y);
  float sum = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < static_cast<int>(a.count); i += 32) sum += x[i];
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0U, sum, by);
#pragma unroll 1
  for (int i = threadIdx.x; i < static_cast<int>(a.count); i += 32) y[i] = x[i] * sum;
}

}  // extern "C"
