// Products of matrices, in tiles, with a fixed order of the sums.
#include "kernels/product.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

template <class C>
__device__ void product(const ProductArguments& p) {
  const std::int64_t tiles_n = product_tiles(p.n.size);
  const std::int64_t tiles = product_tiles(p.m.size) * tiles_n;
  for (std::int64_t work = blockIdx.x; work < tiles * p.batch.size; work += gridDim.x) {
    const std::int64_t entry = work / tiles;
    const std::int64_t first_m = work % tiles / tiles_n * product_tile;
    const std::int64_t first_n = work % tiles_n * product_tile;
    const std::int64_t batch_a = along(p.batch, p.a.batch, entry);
    const std::int64_t batch_b = along(p.batch, p.b.batch, entry);
    Tile<C> tile;
    multiply_tile(
        tile, p.k.size,
        [&](int row, std::int64_t k) {
          return element_or_zero<C>(p.a, batch_a, p.m, first_m + row, p.k, k);
        },
        [&](std::int64_t k, int column) {
          return element_or_zero<C>(p.b, batch_b, p.k, k, p.n, first_n + column);
        });
    const std::int64_t batch_y = along(p.batch, p.y.batch, entry);
    const std::int64_t batch_bias = along(p.batch, p.bias.batch, entry);
    tile.each([&](int row, int column, C value) {
      const std::int64_t m = first_m + row, n = first_n + column;
      if (m >= p.m.size || n >= p.n.size) return;
      if (p.bias.data != nullptr) {
        value += element_or_zero<C>(p.bias, batch_bias, p.m, m, p.n, n);
      }
      store_product(p, batch_y, m, n, value);
    });
  }
}

}  // namespace

extern "C" {

__global__ void product_f32(const ProductArguments p) { product<float>(p); }
__global__ void product_f64(const ProductArguments p) { product<double>(p); }
/// Of integers; sums wrap as 64 bits.
__global__ void product_i64(const ProductArguments p) { product<std::int64_t>(p); }

}  // extern "C"
