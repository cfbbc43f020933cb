// Products of matrices, in tiles, with a fixed order of the sums. Simple: no tensor cores.
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

// A block of 256 threads computes a tile of y; each thread has elements 16 rows or columns apart.
constexpr int tile = 64;
constexpr int depth = 16;  // of k at once
constexpr int across = 16;
constexpr int each = tile / across;

__device__ std::int64_t along(const Axis& axis, const std::int64_t* strides, std::int64_t i) {
  return offset_in(axis.dims, axis.extents, strides, i);
}

template <class C>
__device__ C element_or_zero(const Matrix& x, std::int64_t batch, const Axis& rows,
                             std::int64_t row, const Axis& columns, std::int64_t column) {
  return row < rows.size && column < columns.size
             ? load<C>(x.data, x.type,
                       batch + along(rows, x.rows, row) + along(columns, x.columns, column))
             : C{};
}

template <class C>
__device__ void product(const ProductArguments& p) {
  __shared__ C a[depth][tile];
  __shared__ C b[depth][tile];
  const std::int64_t tiles_n = (p.n.size + tile - 1) / tile;
  const std::int64_t tiles = (p.m.size + tile - 1) / tile * tiles_n;
  const int thread = static_cast<int>(threadIdx.x);
  const int x = thread % across, y = thread / across;
  for (std::int64_t work = blockIdx.x; work < tiles * p.batch.size; work += gridDim.x) {
    const std::int64_t entry = work / tiles;
    const std::int64_t first_m = work % tiles / tiles_n * tile, first_n = work % tiles_n * tile;
    const std::int64_t batch_a = along(p.batch, p.a.batch, entry);
    const std::int64_t batch_b = along(p.batch, p.b.batch, entry);
    C sums[each][each] = {};
    for (std::int64_t first_k = 0; first_k < p.k.size; first_k += depth) {
      for (int i = thread; i < depth * tile; i += across * across) {
        const int at = i / depth, k = i % depth;
        a[k][at] = element_or_zero<C>(p.a, batch_a, p.m, first_m + at, p.k, first_k + k);
        b[i / tile][i % tile] =
            element_or_zero<C>(p.b, batch_b, p.k, first_k + i / tile, p.n, first_n + i % tile);
      }
      __syncthreads();
      const std::int64_t left = p.k.size - first_k;
      const int count = left < depth ? static_cast<int>(left) : depth;
      for (int k = 0; k < count; ++k) {
        for (int i = 0; i < each; ++i) {
          for (int j = 0; j < each; ++j) sums[i][j] += a[k][y + across * i] * b[k][x + across * j];
        }
      }
      __syncthreads();
    }
    const std::int64_t batch_y = along(p.batch, p.y.batch, entry);
    const std::int64_t batch_bias = along(p.batch, p.bias.batch, entry);
    for (int i = 0; i < each; ++i) {
      for (int j = 0; j < each; ++j) {
        const std::int64_t m = first_m + y + across * i, n = first_n + x + across * j;
        if (m >= p.m.size || n >= p.n.size) continue;
        C value = sums[i][j];
        if (p.bias.data != nullptr) {
          value += element_or_zero<C>(p.bias, batch_bias, p.m, m, p.n, n);
        }
        store(p.y.data, p.y.type, batch_y + along(p.m, p.y.rows, m) + along(p.n, p.y.columns, n),
              value);
      }
    }
  }
}

}  // namespace

extern "C" {

__global__ void product_f32(const ProductArguments p) { product<float>(p); }
__global__ void product_f64(const ProductArguments p) { product<double>(p); }
/// Of integers; sums wrap as 64 bits.
__global__ void product_i64(const ProductArguments p) { product<std::int64_t>(p); }

}  // extern "C"
