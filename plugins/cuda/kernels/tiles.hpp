// Tiles of rows in shared memory, 16 bits an element, and fragments of them for tensor cores. A
// block has `threads` threads; fragments have 16 rows.
#pragma once
#include <cstdint>

#include "kernels/mma.hpp"
#include "kernels/packing.hpp"

namespace tessera::cuda {

struct alignas(16) Chunk {
  std::uint16_t elements[8];
};

inline constexpr int lanes_of_warp = 32;
inline constexpr int rows_of_warp = 16;

/// Where a chunk of a tile's row is. Chunks change places within a row, so that the same chunk of 8
/// rows is in 8 different groups of banks. Of 32 elements, two rows fill the banks.
template <int width>
__device__ Chunk* place_of(Chunk* tile, int row, int chunk) {
  static_assert(width == 32 || width % 64 == 0);
  return tile + row * (width / 8) + (chunk ^ (width == 32 ? row / 2 % 4 : row % 8));
}

/// Rows of elements in the device's memory, which begin at multiples of 16 bytes. There are `rows`
/// of `elements`, a multiple of 8.
struct TileRows {
  std::uint16_t* begin;
  std::int64_t step;  // from row to row, in elements
  std::int64_t rows, elements;
};

/// Calls body(a chunk of the tile, where it is in the device's memory, whether it exists) for the
/// thread's chunks of a tile, whose first element is element `element` of row `row`.
template <int width, int rows, int threads, class Body>
__device__ void each_chunk(Chunk* tile, const TileRows& x, std::int64_t row, std::int64_t element,
                           Body body) {
  constexpr int chunks = width / 8, rows_at_once = threads / chunks;
  static_assert(threads % chunks == 0 && rows % rows_at_once == 0);
  const int first = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
  const bool inside = element + chunk * 8 < x.elements;
  const std::int64_t left = x.rows - row - first, step = rows_at_once * x.step;
  std::uint16_t* at = x.begin + (row + first) * x.step + element + chunk * 8;
#pragma unroll
  for (int i = 0; i < rows; i += rows_at_once, at += step) {
    body(place_of<width>(tile, first + i, chunk), at, inside && i < left);
  }
}

/// Begins to copy a tile; zeros where nothing exists.
template <int width, int rows, int threads>
__device__ void fetch_tile(Chunk* tile, const TileRows& x, std::int64_t row,
                           std::int64_t element = 0) {
  each_chunk<width, rows, threads>(tile, x, row, element,
                                   [&](Chunk* to, const std::uint16_t* from, bool exists) {
                                     copy_async(to, exists ? from : x.begin, exists);
                                   });
}

/// Pairs of tiles that a block goes through: while it uses one, the next is copied.
template <int width, int rows, int threads>
class TilePairs {
 public:
  static constexpr int chunks = rows * width / 8;
  explicit __device__ TilePairs(Chunk* memory) : memory_(memory) {}

  __device__ Chunk* left(int step) const { return memory_ + step % 2 * 2 * chunks; }
  __device__ Chunk* right(int step) const { return left(step) + chunks; }
  __device__ Chunk* end() const { return memory_ + 4 * chunks; }
  /// Begins to copy those of a step, from row `row` on.
  __device__ void fetch(int step, const TileRows& of_left, const TileRows& of_right,
                        std::int64_t row) const {
    fetch_tile<width, rows, threads>(left(step), of_left, row);
    fetch_tile<width, rows, threads>(right(step), of_right, row);
  }

 private:
  Chunk* memory_;
};

/// Writes what exists of a tile, as fetch_tile reads it.
template <int width, int rows, int threads>
__device__ void write_tile(Chunk* tile, const TileRows& x, std::int64_t row) {
  each_chunk<width, rows, threads>(tile, x, row, 0,
                                   [](const Chunk* from, std::uint16_t* to, bool exists) {
                                     if (exists) *reinterpret_cast<Chunk*>(to) = *from;
                                   });
}

/// Puts 16 rows of sums, each times its factor, into a tile from `first_chunk` on: factors[0] is
/// that of the lane's first row, factors[1] that of the row 8 below.
template <class T, int width, int blocks>
__device__ void put_sums(Chunk* tile, int row, int first_chunk, const float (&sums)[blocks][4],
                         const float (&factors)[2]) {
  const int lane = threadIdx.x % lanes_of_warp;
#pragma unroll
  for (int n = 0; n < blocks; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Chunk* const chunk = place_of<width>(tile, row + lane / 4 + 8 * half, first_chunk + n);
      reinterpret_cast<std::uint32_t*>(chunk)[lane % 4] =
          rounded_pair<T>(sums[n][2 * half] * factors[half], sums[n][2 * half + 1] * factors[half]);
    }
  }
}

/// 16 rows of a tile, elements 16 step to 16 step + 15, as the first operand.
template <int width>
__device__ void rows_as_a(std::uint32_t (&words)[4], Chunk* tile, int row, int step) {
  const int lane = threadIdx.x % lanes_of_warp;
  load_matrices(words, place_of<width>(tile, row + lane % 16, 2 * step + lane / 16));
}

/// 16 rows as columns of the second operand: words 0 and 1 are of the first 8, 2 and 3 of the
/// others.
template <int width>
__device__ void rows_as_columns(std::uint32_t (&words)[4], Chunk* tile, int row, int step) {
  const int lane = threadIdx.x % lanes_of_warp;
  load_matrices(words,
                place_of<width>(tile, row + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
}

/// 16 rows as rows of the second operand: columns 16 step to 16 step + 7 are in words 0 and 1, the
/// next 8 in words 2 and 3.
template <int width>
__device__ void rows_as_b(std::uint32_t (&words)[4], Chunk* tile, int row, int step) {
  const int lane = threadIdx.x % lanes_of_warp;
  load_transposed(words, place_of<width>(tile, row + lane % 16, 2 * step + lane / 16));
}

/// 16 columns of 16 rows, turned, as the first operand: the rows are what is summed over.
template <int width>
__device__ void columns_as_a(std::uint32_t (&words)[4], Chunk* tile, int row, int step) {
  const int lane = threadIdx.x % lanes_of_warp;
  load_transposed(words,
                  place_of<width>(tile, row + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
}

/// sums[i, j] += row i of a . row j of b: `row_tiles` times 16 rows of a from `row` on, `columns`
/// rows of b. What is read of b serves all row tiles.
template <class T, int width, int columns, int row_tiles>
__device__ void add_dots(float (&sums)[row_tiles][columns / 8][4], Chunk* a, int row, Chunk* b) {
#pragma unroll
  for (int step = 0; step < width / 16; ++step) {
    std::uint32_t of_a[row_tiles][4];
#pragma unroll
    for (int m = 0; m < row_tiles; ++m) {
      rows_as_a<width>(of_a[m], a, row + m * rows_of_warp, step);
    }
#pragma unroll
    for (int n = 0; n < columns / 16; ++n) {
      std::uint32_t of_b[4];
      rows_as_columns<width>(of_b, b, 16 * n, step);
#pragma unroll
      for (int m = 0; m < row_tiles; ++m) {
        multiply_add<T>(sums[m][2 * n], of_a[m], of_b[0], of_b[1]);
        multiply_add<T>(sums[m][2 * n + 1], of_a[m], of_b[2], of_b[3]);
      }
    }
  }
}

/// Two neighbouring blocks of sums as 16 columns of the first operand, rounded to T: the two
/// layouts are alike.
template <class T>
__device__ void sums_as_a(std::uint32_t (&words)[4], const float (&left)[4],
                          const float (&right)[4]) {
  words[0] = rounded_pair<T>(left[0], left[1]);
  words[1] = rounded_pair<T>(left[2], left[3]);
  words[2] = rounded_pair<T>(right[0], right[1]);
  words[3] = rounded_pair<T>(right[2], right[3]);
}

/// sums[i, d] += sum over j of weights[i, j] times row j of b, element d.
template <class T, int width, int columns, int row_tiles>
__device__ void add_weighted(float (&sums)[row_tiles][width / 8][4],
                             const float (&weights)[row_tiles][columns / 8][4], Chunk* b) {
#pragma unroll
  for (int step = 0; step < columns / 16; ++step) {
    std::uint32_t of_a[row_tiles][4];
#pragma unroll
    for (int m = 0; m < row_tiles; ++m) {
      sums_as_a<T>(of_a[m], weights[m][2 * step], weights[m][2 * step + 1]);
    }
#pragma unroll
    for (int n = 0; n < width / 16; ++n) {
      std::uint32_t of_b[4];
      rows_as_b<width>(of_b, b, 16 * step, n);
#pragma unroll
      for (int m = 0; m < row_tiles; ++m) {
        multiply_add<T>(sums[m][2 * n], of_a[m], of_b[0], of_b[1]);
        multiply_add<T>(sums[m][2 * n + 1], of_a[m], of_b[2], of_b[3]);
      }
    }
  }
}

}  // namespace tessera::cuda
