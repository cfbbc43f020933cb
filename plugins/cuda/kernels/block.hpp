// Sums and maxima over the threads of a block, always by the same tree.
#pragma once
#include <cstdint>

namespace tessera::cuda {

inline constexpr unsigned lanes = 32;
inline constexpr unsigned most_warps = 32;

struct Sum {
  template <class C>
  __device__ C operator()(C a, C b) const {
    return a + b;
  }
};
/// NaN where one of them is.
struct NanMaximum {
  template <class C>
  __device__ C operator()(C a, C b) const {
    return a != a ? a : (b > a || b != b ? b : a);
  }
};
struct NanMinimum {
  template <class C>
  __device__ C operator()(C a, C b) const {
    return a != a ? a : (b < a || b != b ? b : a);
  }
};

/// `value` of all lanes of the warp, joined; all lanes get it.
template <class C, class Join>
__device__ C join_warp(C value, Join join) {
  for (unsigned by = lanes / 2; by > 0; by /= 2) {
    value = join(value, __shfl_xor_sync(~0U, value, static_cast<int>(by)));
  }
  return value;
}

/// `value` of all threads of the block, joined; all threads get it. The block has a multiple of 32
/// threads, all of which call it. `none`: what changes nothing.
template <class C, class Join>
__device__ C join_block(C value, C none, Join join) {
  __shared__ C partial[most_warps];
  value = join_warp(value, join);
  __syncthreads();  // the last call's readers are done
  if (threadIdx.x % lanes == 0) partial[threadIdx.x / lanes] = value;
  __syncthreads();
  const unsigned warps = blockDim.x / lanes;
  C joined = none;
  for (unsigned warp = 0; warp < warps; ++warp) joined = join(joined, partial[warp]);
  return joined;
}

template <class C>
__device__ C sum_block(C value) {
  return join_block(value, C{}, Sum{});
}

}  // namespace tessera::cuda
