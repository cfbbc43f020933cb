#include "gemm.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "onednn.hpp"
#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/scratch.hpp"
#include "shared/kernels/simd.hpp"
#include "shared/kernels/tile.hpp"

// A row's bits and the number of rows: the double kernel here gives each element by one chain over
// k, so they do not depend on m. oneDNN chooses a blocking by the extents and promises nothing; on
// AVX-512 float rows had the same bits for m = 1, 2, 4, ... 256 at all extents tried
// (tests/gemm.cpp, tag [measure]). bfloat16: see kFewRows.

namespace tessera::kernels {
namespace {

template <class Out>
void zero_rows(const Gemm& shape, Out* c) {
  for (std::int64_t entry = 0; entry < shape.batch; ++entry) {
    for (std::int64_t row = 0; row < shape.m; ++row) {
      std::fill_n(c + entry * shape.stride_c + row * shape.ldc, shape.n, Out{});
    }
  }
}

/// One batch entry in double: op(B) is copied in panels of full vectors, C's too.
void double_product(const Gemm& shape, const double* a, const double* b, double* c) {
  constexpr std::int64_t kPanel = 32;
  const std::int64_t panels = (shape.n + kPanel - 1) / kPanel;
  const std::int64_t a_row = shape.trans_a ? 1 : shape.lda;
  const std::int64_t a_k = shape.trans_a ? shape.lda : 1;
  const std::int64_t b_k = shape.trans_b ? 1 : shape.ldb;
  const std::int64_t b_column = shape.trans_b ? shape.ldb : 1;
  parallel_for(0, panels, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> right(static_cast<std::size_t>(shape.k * kPanel));
    std::vector<double> result(static_cast<std::size_t>(shape.m * kPanel));
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t first = panel * kPanel;
      const std::int64_t width = std::min(kPanel, shape.n - first);
      for (std::int64_t p = 0; p < shape.k; ++p) {
        double* row = right.data() + p * kPanel;
        for (std::int64_t j = 0; j < width; ++j) row[j] = b[p * b_k + (first + j) * b_column];
        std::fill(row + width, row + kPanel, 0.0);
      }
      simd::dispatch([&](auto isa) __attribute__((always_inline)) {
        tile::product<false>(
            isa, tile::Product<double>{shape.m, kPanel, shape.k, a, a_row, a_k, right.data(),
                                       kPanel, result.data(), kPanel});
      });
      for (std::int64_t i = 0; i < shape.m; ++i) {
        for (std::int64_t j = 0; j < width; ++j) {
          double& target = c[i * shape.ldc + first + j];
          target =
              result[static_cast<std::size_t>(i * kPanel + j)] + (shape.accumulate ? target : 0.0);
        }
      }
    }
  });
}

/// A stored matrix [rows, columns] with a row stride, made contiguous and float.
template <class T>
void widen(std::int64_t rows, std::int64_t columns, const T* x, std::int64_t stride,
           float* result) {
  constexpr DType kType = std::is_same_v<T, BFloat16> ? DType::bf16 : DType::f16;
  if (stride == columns) return cast(kType, DType::f32, rows * columns, x, result);
  for (std::int64_t row = 0; row < rows; ++row) {
    cast(kType, DType::f32, columns, x + row * stride, result + row * columns);
  }
}

/// Few rows read B once: widening it would cost more than the product. (So below this number of
/// rows the bits of a bfloat16 row can differ from those above it.)
constexpr std::int64_t kFewRows = 8;

/// One product of 16-bit operands by way of float copies: for Half, and machines without
/// bfloat16.
template <class T, class Out>
void widened_product(const Gemm& shape, const T* a, const T* b, Out* c) {
  const std::int64_t a_rows = shape.trans_a ? shape.k : shape.m;
  const std::int64_t a_columns = shape.trans_a ? shape.m : shape.k;
  const std::int64_t b_rows = shape.trans_b ? shape.n : shape.k;
  const std::int64_t b_columns = shape.trans_b ? shape.k : shape.n;
  float* wide_a = scratch<struct WideA, float>(a_rows * a_columns);
  float* wide_b = scratch<struct WideB, float>(b_rows * b_columns);
  widen(a_rows, a_columns, a, shape.lda, wide_a);
  widen(b_rows, b_columns, b, shape.ldb, wide_b);
  Gemm wide = shape;
  wide.lda = a_columns;
  wide.ldb = b_columns;
  if constexpr (std::is_same_v<Out, float>) {
    gemm(wide, wide_a, wide_b, c);
  } else {
    float* wide_c = scratch<struct WideC, float>(shape.m * shape.n);
    if (shape.accumulate) widen(shape.m, shape.n, c, shape.ldc, wide_c);
    wide.ldc = shape.n;
    gemm(wide, wide_a, wide_b, wide_c);
    constexpr DType kType = std::is_same_v<T, BFloat16> ? DType::bf16 : DType::f16;
    if (shape.ldc == shape.n) return cast(DType::f32, kType, shape.m * shape.n, wide_c, c);
    for (std::int64_t row = 0; row < shape.m; ++row) {
      cast(DType::f32, kType, shape.n, wide_c + row * shape.n, c + row * shape.ldc);
    }
  }
}

/// A batch over one B whose rows of A and C follow each other is one product.
Gemm folded(Gemm shape) {
  if (shape.batch > 1 && shape.stride_b == 0 && !shape.trans_a &&
      shape.stride_a == shape.m * shape.lda && shape.stride_c == shape.m * shape.ldc) {
    shape.m *= shape.batch;
    shape.batch = 1;
  }
  if (shape.batch == 1) shape.stride_a = shape.stride_b = shape.stride_c = 0;
  return shape;
}

}  // namespace

template <class T, class Out>
void gemm(const Gemm& given, const T* a, const T* b, Out* c) {
  const Gemm shape = folded(given);
  if (shape.m == 0 || shape.n == 0 || shape.batch == 0) return;
  if (shape.k == 0) {
    if (!shape.accumulate) zero_rows(shape, c);
    return;
  }
  const auto library = [&](const Gemm& part, const T* x, const T* y, Out* z) {
    if constexpr (std::is_same_v<T, float>) {
      return onednn::product(part, x, y, z);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      return (part.m < kFewRows || onednn::native_bfloat16()) && onednn::product(part, x, y, z);
    } else {
      return false;
    }
  };
  if (library(shape, a, b, c)) return;
  Gemm single = shape;
  single.batch = 1;
  single.stride_a = single.stride_b = single.stride_c = 0;
  for (std::int64_t entry = 0; entry < shape.batch; ++entry) {
    const T* entry_a = a + entry * shape.stride_a;
    const T* entry_b = b + entry * shape.stride_b;
    Out* entry_c = c + entry * shape.stride_c;
    if (shape.batch > 1 && library(single, entry_a, entry_b, entry_c)) continue;
    if constexpr (std::is_same_v<T, double>) {
      double_product(single, entry_a, entry_b, entry_c);
    } else if constexpr (!std::is_same_v<T, float>) {
      widened_product(single, entry_a, entry_b, entry_c);
    } else {
      throw std::runtime_error("gemm: oneDNN has no kernel for this float product");
    }
  }
}

template void gemm(const Gemm&, const float*, const float*, float*);
template void gemm(const Gemm&, const double*, const double*, double*);
template void gemm(const Gemm&, const BFloat16*, const BFloat16*, BFloat16*);
template void gemm(const Gemm&, const BFloat16*, const BFloat16*, float*);
template void gemm(const Gemm&, const Half*, const Half*, Half*);
template void gemm(const Gemm&, const Half*, const Half*, float*);

}  // namespace tessera::kernels
