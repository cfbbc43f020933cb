// A tile of a product, which a block of 256 threads computes. Simple: no tensor cores.
#pragma once
#include <cstdint>

#include "kernels/memory.hpp"
#include "kernels/tile_size.hpp"

namespace tessera::cuda {

inline constexpr int tile_depth = 16;  // of k at once
// Each thread has elements 16 rows or columns apart.
inline constexpr int tile_across = 16;
inline constexpr int tile_each = product_tile / tile_across;

/// The thread's elements of a tile.
template <class C>
struct Tile {
  C sums[tile_each][tile_each] = {};

  /// Calls body(row, column, sum) for each, within the tile.
  template <class Body>
  __device__ void each(Body body) const {
    const int x = static_cast<int>(threadIdx.x) % tile_across;
    const int y = static_cast<int>(threadIdx.x) / tile_across;
#pragma unroll
    for (int i = 0; i < tile_each; ++i) {
#pragma unroll
      for (int j = 0; j < tile_each; ++j) {
        body(y + tile_across * i, x + tile_across * j, sums[i][j]);
      }
    }
  }
};

/// Adds the products of a(row, k) and b(k, column), which are 0 beyond their matrices, for k in
/// order from 0 to `count`. All threads of the block call it.
template <class C, class A, class B>
__device__ void multiply_tile(Tile<C>& to, std::int64_t count, A element_of_a, B element_of_b) {
  __shared__ C a[tile_depth][product_tile];
  __shared__ C b[tile_depth][product_tile];
  constexpr int threads = tile_across * tile_across;
  const int thread = static_cast<int>(threadIdx.x);
  const int x = thread % tile_across, y = thread / tile_across;
  for (std::int64_t first = 0; first < count; first += tile_depth) {
    for (int i = thread; i < tile_depth * product_tile; i += threads) {
      const int row = i / tile_depth, k = i % tile_depth;
      a[k][row] = element_of_a(row, first + k);
      b[i / product_tile][i % product_tile] =
          element_of_b(first + i / product_tile, i % product_tile);
    }
    __syncthreads();
    const std::int64_t left = count - first;
    const int depth = left < tile_depth ? static_cast<int>(left) : tile_depth;
    for (int k = 0; k < depth; ++k) {
#pragma unroll
      for (int i = 0; i < tile_each; ++i) {
#pragma unroll
        for (int j = 0; j < tile_each; ++j) {
          to.sums[i][j] += a[k][y + tile_across * i] * b[k][x + tile_across * j];
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace tessera::cuda
