#pragma once
// Sums over k in 16 lanes, of rows with rows: what products have in common whose elements do not
// depend on how many rows there are. Everything is inlined into the body of simd::dispatch.

#include <algorithm>
#include <cstdint>

#include "shared/kernels/simd.hpp"

namespace tessera::kernels::row_dots {

using simd::F32;

inline constexpr std::int64_t kLanes = simd::kLanes<float>;

/// One matrix of a batch.
struct RowProduct {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  const float* a;
  std::int64_t lda;
  const float* b;
  std::int64_t ldb;
  float* c;
  std::int64_t ldc;
  bool accumulate;
};

[[gnu::always_inline]] inline void write(const RowProduct& x, std::int64_t row, std::int64_t column,
                                         float sum) {
  float& target = x.c[row * x.ldc + column];
  target = x.accumulate ? target + sum : sum;
}

/// Elements of rows of A with rows of B: kRows x kColumns sums of 16 lanes.
template <int kRows, int kColumns>
[[gnu::always_inline]] inline void dots(const RowProduct& x, std::int64_t row,
                                        std::int64_t column) {
  const float* const a = x.a + row * x.lda;
  const float* const b = x.b + column * x.ldb;
  F32 sum[kRows][kColumns] = {};
  std::int64_t p = 0;
  for (; p + kLanes <= x.k; p += kLanes) {
    F32 right[kColumns];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) right[j] = simd::load(b + j * x.ldb + p);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const F32 left = simd::load(a + i * x.lda + p);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sum[i][j] += left * right[j];
    }
  }
  if (p < x.k) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const F32 left = simd::load_partial(a + i * x.lda + p, x.k - p);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        sum[i][j] += left * simd::load_partial(b + j * x.ldb + p, x.k - p);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) write(x, row + i, column + j, simd::sum_lanes(sum[i][j]));
  }
}

template <int kRows, int kColumns>
[[gnu::always_inline]] inline void dots_of_rows(const RowProduct& x, std::int64_t row,
                                                std::int64_t begin, std::int64_t end) {
  std::int64_t column = begin;
  for (; column + kColumns <= end; column += kColumns) dots<kRows, kColumns>(x, row, column);
  for (; column < end; ++column) dots<kRows, 1>(x, row, column);
}

/// Some columns of the product with B transposed. Blocks of rows stay in the first cache while the
/// columns go by.
template <class Isa>
[[gnu::always_inline]] inline void transposed_panel(Isa, const RowProduct& x, std::int64_t begin,
                                                    std::int64_t end) {
  constexpr int kRows = Isa::kManyRegisters ? 4 : 2;
  constexpr int kColumns = Isa::kManyRegisters ? 6 : 3;
  constexpr std::int64_t kFirstCache = 6144;  // floats
  if (x.m == 1) return dots_of_rows<1, 2 * kColumns>(x, 0, begin, end);
  const std::int64_t rows = std::max<std::int64_t>(kFirstCache / x.k / kRows, 1) * kRows;
  for (std::int64_t block = 0; block < x.m; block += rows) {
    const std::int64_t last = std::min(x.m, block + rows);
    for (std::int64_t column = begin; column < end; column += kColumns) {
      const std::int64_t until = std::min(end, column + kColumns);
      std::int64_t row = block;
      for (; row + kRows <= last; row += kRows)
        dots_of_rows<kRows, kColumns>(x, row, column, until);
      for (; row < last; ++row) dots_of_rows<1, kColumns>(x, row, column, until);
    }
  }
}

}  // namespace tessera::kernels::row_dots
