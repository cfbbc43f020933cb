// A tile of a product of matrices by tensor cores, for 16-bit types: 128 x 256 elements, which a
// block of 256 threads computes. All sums are f32, in the order of what is summed over.
#pragma once
#include <cstdint>

#include "kernels/mma.hpp"
#include "kernels/tile_size.hpp"
#include "kernels/tiles.hpp"

namespace tessera::cuda {

/// An operand's tiles, `extent` rows or columns of the product. Their rows run along what is summed
/// over, or across it: then each has all of the extent's elements for one term of the sums.
template <int extent, bool along>
struct OperandTile {
  static constexpr int width = along ? mma_depth : extent, rows = along ? extent : mma_depth;
  static constexpr int chunks = rows * width / 8;

  /// Begins to copy what is needed for the terms from `term` on.
  static __device__ void fetch(Chunk* tile, const TileRows& x, std::int64_t term) {
    fetch_tile<width, rows, mma_threads>(tile, x, along ? 0 : term, along ? term : 0);
  }
  /// 16 rows from `first` on as the first operand, for 16 terms.
  static __device__ void as_a(std::uint32_t (&words)[4], Chunk* tile, int first, int step) {
    if constexpr (along) {
      rows_as_a<width>(words, tile, first, step);
    } else {
      columns_as_a<width>(words, tile, 16 * step, first / 16);
    }
  }
  /// 16 columns from `first` on as the second operand; words 0 and 1 are of the first 8.
  static __device__ void as_b(std::uint32_t (&words)[4], Chunk* tile, int first, int step) {
    if constexpr (along) {
      rows_as_columns<width>(words, tile, first, step);
    } else {
      rows_as_b<width>(words, tile, 16 * step, first / 16);
    }
  }
};

/// A warp's part of a tile, 64 x 64. Warps that share a quarter of the multiprocessor (those whose
/// numbers differ by 4) have other rows and other columns, so that all quarters have work where a
/// result has less than a tile.
template <class T, bool a_along, bool b_along>
class MmaTile {
 public:
  /// Adds the products of terms 0 to `terms`. `a` and `b` begin at the tile's first row and column;
  /// where they run along the sums, they have `terms` elements, else as many rows.
  __device__ void multiply(const TileRows& a, const TileRows& b, std::int64_t terms) {
    const int steps = static_cast<int>((terms + mma_depth - 1) / mma_depth);
    const bool works =
        row_ < (a_along ? a.rows : a.elements) && column_ < (b_along ? b.rows : b.elements);
    const auto fetch = [&](int step) {
      if (step < steps) {
        A::fetch(of_a(step), a, std::int64_t{step} * mma_depth);
        B::fetch(of_b(step), b, std::int64_t{step} * mma_depth);
      }
      end_group_of_copies();
    };
#pragma unroll
    for (int step = 0; step < mma_stages - 1; ++step) fetch(step);
    for (int step = 0; step < steps; ++step) {
      wait_for_groups<mma_stages - 2>();
      __syncthreads();  // this step's tiles are there, and those of the last one are not needed
      fetch(step + mma_stages - 1);
      if (works) add(of_a(step), of_b(step));
    }
    wait_for_copies();
    __syncthreads();
  }

  /// Writes the tile's elements that exist, rounded to T, by way of the memory of the tiles.
  __device__ void write(const TileRows& y) {
    const float ones[2] = {1, 1};
#pragma unroll
    for (int m = 0; m < fragments; ++m) {
      put_sums<T, mma_columns>(memory_, row_ + 16 * m, column_ / 8, sums_[m], ones);
    }
    __syncthreads();
    write_tile<mma_columns, mma_rows, mma_threads>(memory_, y, 0);
  }

 private:
  using A = OperandTile<mma_rows, a_along>;
  using B = OperandTile<mma_columns, b_along>;
  static constexpr int fragments = 4;  // of 16 rows, and of 16 columns

  __device__ Chunk* of_a(int step) const {
    return memory_ + step % mma_stages * (A::chunks + B::chunks);
  }
  __device__ Chunk* of_b(int step) const { return of_a(step) + A::chunks; }

  __device__ void add(Chunk* a, Chunk* b) {
#pragma unroll
    for (int step = 0; step < mma_depth / 16; ++step) {
      std::uint32_t rows[fragments][4];
#pragma unroll
      for (int m = 0; m < fragments; ++m) A::as_a(rows[m], a, row_ + 16 * m, step);
#pragma unroll
      for (int n = 0; n < fragments; ++n) {
        std::uint32_t columns[4];
        B::as_b(columns, b, column_ + 16 * n, step);
#pragma unroll
        for (int m = 0; m < fragments; ++m) {
          multiply_add<T>(sums_[m][2 * n], rows[m], columns[0], columns[1]);
          multiply_add<T>(sums_[m][2 * n + 1], rows[m], columns[2], columns[3]);
        }
      }
    }
  }

  Chunk* memory_ = static_cast<Chunk*>(launched_memory());
  int warp_ = static_cast<int>(threadIdx.x) / lanes_of_warp;
  int row_ = (warp_ ^ warp_ / 4) % 2 * 64;
  int column_ = (warp_ / 4 * 2 + warp_ / 2 % 2) * 64;
  float sums_[fragments][2 * fragments][4] = {};
};

}  // namespace tessera::cuda
