#include "row_gemm.hpp"

#include <algorithm>
#include <cstdint>
#include <tessera/row_products.hpp>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera {
namespace {

thread_local int row_products = 0;

}  // namespace

RowProducts::RowProducts() { ++row_products; }
RowProducts::~RowProducts() { --row_products; }
bool RowProducts::active() { return row_products > 0; }

}  // namespace tessera

namespace tessera::kernels {
namespace {

using simd::F32;

constexpr std::int64_t kLanes = simd::kLanes<float>;
constexpr std::int64_t kPanel = 48;  // columns of a task, whose part of B stays in a core's cache

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

/// 16 columns of kRows rows, with B as it is: each element is one chain over k.
template <int kRows>
[[gnu::always_inline]] inline void chains(const RowProduct& x, std::int64_t row,
                                          std::int64_t column) {
  const std::int64_t width = std::min(kLanes, x.n - column);
  F32 sum[kRows] = {};
  for (std::int64_t p = 0; p < x.k; ++p) {
    const F32 right = simd::load_some(x.b + p * x.ldb + column, width);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      sum[i] += simd::splat<F32>(x.a[(row + i) * x.lda + p]) * right;
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float* const target = x.c + (row + i) * x.ldc + column;
    const F32 before = x.accumulate ? simd::load_some(target, width) : F32{};
    simd::store_some(target, width, x.accumulate ? before + sum[i] : sum[i]);
  }
}

[[gnu::always_inline]] inline void plain_panel(const RowProduct& x, std::int64_t begin,
                                               std::int64_t end) {
  constexpr int kRows = 6;
  for (std::int64_t column = begin; column < end; column += kLanes) {
    std::int64_t row = 0;
    for (; row + kRows <= x.m; row += kRows) chains<kRows>(x, row, column);
    for (; row < x.m; ++row) chains<1>(x, row, column);
  }
}

}  // namespace

void row_gemm(const Gemm& shape, const float* a, const float* b, float* c) {
  const std::int64_t panels = (shape.n + kPanel - 1) / kPanel;
  // Less work than this is not worth waking a thread.
  constexpr std::int64_t kGrainWork = 1 << 17;
  const std::int64_t grain = 1 + kGrainWork / (1 + shape.m * shape.k * kPanel);
  parallel_for(0, shape.batch * panels, grain, [&](std::int64_t first, std::int64_t last) {
    simd::dispatch([&](auto isa) __attribute__((always_inline)) {
      for (std::int64_t task = first; task < last; ++task) {
        const std::int64_t entry = task / panels;
        const RowProduct x{shape.m,   shape.n,
                           shape.k,   a + entry * shape.stride_a,
                           shape.lda, b + entry * shape.stride_b,
                           shape.ldb, c + entry * shape.stride_c,
                           shape.ldc, shape.accumulate};
        const std::int64_t begin = task % panels * kPanel;
        const std::int64_t end = std::min(shape.n, begin + kPanel);
        if (shape.trans_b) {
          transposed_panel(isa, x, begin, end);
        } else {
          plain_panel(x, begin, end);
        }
      }
    });
  });
}

}  // namespace tessera::kernels
