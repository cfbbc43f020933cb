// Products of 8-bit floating codes with factors.
#include "kernels/product.hpp"
#include "kernels/scaled.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

/// Where the factor of place `i` of the dims [first, last) is.
__device__ std::int64_t along(const Factors& f, int first, int last, std::int64_t i) {
  std::int64_t offset = 0;
  for (int d = last - 1; d >= first; --d) {
    offset += i % f.extents[d] / f.blocks[d] * f.strides[d];
    i /= f.extents[d];
  }
  return offset;
}
__device__ float factor_of(const Factors& f, std::int64_t kept, std::int64_t summed) {
  return f.data[along(f, f.first_kept, f.last_kept, kept) +
                along(f, f.first_summed, f.last_summed, summed)];
}

/// A code, with its factor where that is not taken out of the sum.
__device__ float value_of(const Factors& f, const Matrix& x, const Axis& rows, std::int64_t row,
                          const Axis& columns, std::int64_t column, std::int64_t kept,
                          std::int64_t summed) {
  const float code = element_or_zero<float>(x, 0, rows, row, columns, column);
  return f.vary && row < rows.size && column < columns.size ? code * factor_of(f, kept, summed)
                                                            : code;
}

}  // namespace

extern "C" {

__global__ void scaled_product(const ScaledArguments s) {
  const ProductArguments& p = s.product;
  const std::int64_t tiles_n = product_tiles(p.n.size);
  const std::int64_t tiles = product_tiles(p.m.size) * tiles_n;
  for (std::int64_t work = blockIdx.x; work < tiles; work += gridDim.x) {
    const std::int64_t first_m = work / tiles_n * product_tile;
    const std::int64_t first_n = work % tiles_n * product_tile;
    Tile<float> tile;
    multiply_tile(
        tile, p.k.size,
        [&](int row, std::int64_t k) {
          const std::int64_t m = first_m + row;
          return value_of(s.a, p.a, p.m, m, p.k, k, m, k);
        },
        [&](std::int64_t k, int column) {
          const std::int64_t n = first_n + column;
          return value_of(s.b, p.b, p.k, k, p.n, n, n, k);
        });
    tile.each([&](int row, int column, float sum) {
      const std::int64_t m = first_m + row, n = first_n + column;
      if (m >= p.m.size || n >= p.n.size) return;
      const float of_row = s.a.vary ? 1 : factor_of(s.a, m, 0);
      const float of_column = s.b.vary ? 1 : factor_of(s.b, n, 0);
      float value = sum * (of_row * of_column);
      if (p.bias.data != nullptr) value += element_or_zero<float>(p.bias, 0, p.m, m, p.n, n);
      store_product(p, 0, m, n, value);
    });
  }
}

/// A block has tiles of 64 x 64 bytes in turn, and a thread words of 4.
__global__ void turn_codes(const TurnArguments t) {
  constexpr int side = 64, words = side / 4;
  __shared__ std::uint32_t tile[side][words + 1];
  const std::int64_t across = (t.columns + side - 1) / side;
  const std::int64_t tiles = (t.rows + side - 1) / side * across;
  for (std::int64_t work = blockIdx.x; work < tiles; work += gridDim.x) {
    const std::int64_t first_row = work / across * side, first_column = work % across * side;
    for (unsigned i = threadIdx.x; i < side * words; i += blockDim.x) {
      const std::int64_t row = first_row + i / words, column = first_column + i % words * 4;
      if (row < t.rows && column < t.columns) {
        tile[i / words][i % words] = *reinterpret_cast<const std::uint32_t*>(
            static_cast<const std::uint8_t*>(t.codes) + row * t.leading + column);
      }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < side * words; i += blockDim.x) {
      const unsigned column = i / words, row = i % words * 4;  // of the tile
      if (first_column + column < t.columns && first_row + row < t.rows) {
        std::uint32_t word = 0;
        for (unsigned k = 0; k < 4; ++k) {
          word |= (tile[row + k][column / 4] >> (column % 4 * 8) & 0xffU) << (k * 8);
        }
        *reinterpret_cast<std::uint32_t*>(static_cast<std::uint8_t*>(t.turned) +
                                          (first_column + column) * t.rows + first_row + row) =
            word;
      }
    }
    __syncthreads();
  }
}

}  // extern "C"
