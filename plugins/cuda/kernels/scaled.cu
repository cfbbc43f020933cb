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

}  // extern "C"
