#include "row_gemm.hpp"

#include <algorithm>
#include <cstdint>
#include <tessera/row_products.hpp>

#include "matmul/kernels/row_dots.hpp"
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

using row_dots::kLanes;
using row_dots::RowProduct;
using simd::F32;

constexpr std::int64_t kPanel = 48;  // columns of a task, whose part of B stays in a core's cache

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
          row_dots::transposed_panel(isa, x, begin, end);
        } else {
          plain_panel(x, begin, end);
        }
      }
    });
  });
}

}  // namespace tessera::kernels
