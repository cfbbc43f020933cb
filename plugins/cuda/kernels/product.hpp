// Elements of the matrices of a product.
#pragma once
#include "kernels/rows.hpp"
#include "kernels/tile.hpp"

namespace tessera::cuda {

inline __device__ std::int64_t along(const Axis& axis, const std::int64_t* strides,
                                     std::int64_t i) {
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
__device__ void store_product(const ProductArguments& p, std::int64_t batch, std::int64_t m,
                              std::int64_t n, C value) {
  store(p.y.data, p.y.type, batch + along(p.m, p.y.rows, m) + along(p.n, p.y.columns, n), value);
}

}  // namespace tessera::cuda
