#include "integer_gemm.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tessera/element_types.hpp>
#include <tuple>
#include <type_traits>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

/// Unsigned, so that what does not fit wraps; 8 bits in 32, as they would be promoted to int.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) < 4, std::uint32_t, std::make_unsigned_t<T>>;

/// Columns of op(B) that are copied and used together.
constexpr std::int64_t kColumns = 256;

/// Columns [column, column + width) of op(B), row by row.
template <class T>
void copy_columns(const Gemm& shape, const T* b, std::int64_t column, std::int64_t width,
                  Wrapping<T>* to) {
  const std::int64_t row_stride = shape.trans_b ? 1 : shape.ldb;
  const std::int64_t column_stride = shape.trans_b ? shape.ldb : 1;
  for (std::int64_t p = 0; p < shape.k; ++p) {
    const T* from = b + p * row_stride + column * column_stride;
    for (std::int64_t j = 0; j < width; ++j) {
      to[p * width + j] = static_cast<Wrapping<T>>(from[j * column_stride]);
    }
  }
}

/// Columns [column, column + width) of c; b: what copy_columns gives.
template <class T>
void compute_columns(const Gemm& shape, const T* a, const Wrapping<T>* b, std::int64_t column,
                     std::int64_t width, Wrapping<T>* sums, T* c) {
  using W = Wrapping<T>;
  const std::int64_t row_stride = shape.trans_a ? 1 : shape.lda;
  const std::int64_t k_stride = shape.trans_a ? shape.lda : 1;
  for (std::int64_t i = 0; i < shape.m; ++i) {
    T* const target = c + i * shape.ldc + column;
    for (std::int64_t j = 0; j < width; ++j) {
      sums[j] = shape.accumulate ? static_cast<W>(target[j]) : W{0};
    }
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t p = 0; p < shape.k; ++p) {
        const auto factor = static_cast<W>(a[i * row_stride + p * k_stride]);
        const W* line = b + p * width;
        for (std::int64_t j = 0; j < width; ++j) sums[j] += factor * line[j];
      }
    });
    for (std::int64_t j = 0; j < width; ++j) target[j] = static_cast<T>(sums[j]);
  }
}

}  // namespace

template <class T>
void integer_gemm(Workspace& workspace, const Gemm& shape, const T* a, const T* b, T* c) {
  using W = Wrapping<T>;
  struct Arrays {
    Arrays(Workspace& w, const Gemm& shape)
        : columns(w.take<W>(shape.k * std::min(shape.n, kColumns))),
          sums(w.take<W>(std::min(shape.n, kColumns))) {}
    W* columns;
    W* sums;
  };
  const Workspace::Parts parts =
      workspace.per_thread([&](Workspace& part) { Arrays(part, shape); });
  if (workspace.counts()) return;
  const std::int64_t panels = (shape.n + kColumns - 1) / kColumns;
  const std::int64_t work = shape.m * shape.k * std::min(shape.n, kColumns);
  parallel_for(0, shape.batch * panels, 1 + (1 << 18) / (work + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 Workspace part = parts.mine();
                 const Arrays arrays(part, shape);
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t entry = task / panels;
                   const std::int64_t first = task % panels * kColumns;
                   const std::int64_t width = std::min(kColumns, shape.n - first);
                   copy_columns(shape, b + entry * shape.stride_b, first, width, arrays.columns);
                   compute_columns(shape, a + entry * shape.stride_a, arrays.columns, first, width,
                                   arrays.sums, c + entry * shape.stride_c);
                 }
               });
}

namespace {

template <class T>
constexpr auto instance() {
  if constexpr (takes_integer_gemm<T>) {
    return &integer_gemm<T>;
  } else {
    return nullptr;
  }
}

/// Whoever takes a function's address makes the compiler emit it.
[[gnu::used]] constexpr auto instances = []<class... T>(Types<T...>) {
  return std::tuple{instance<T>()...};
}(AllTypes{});

}  // namespace

}  // namespace tessera::kernels
