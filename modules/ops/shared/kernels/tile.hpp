#pragma once
// A small matrix product on tiles that stay in cache, inlined into a dispatched body (see
// simd.hpp).

#include <cstdint>

#include "simd.hpp"

namespace tessera::kernels::tile {

/// Operands of C (m x n) = A B (+ C). A's element (i, p) is a[i * a_row + p * a_k], so A may be
/// transposed; B and C are row-major. n is a multiple of the lanes.
template <class C>
struct Product {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  const C* a;
  std::int64_t a_row;
  std::int64_t a_k;
  const C* b;
  std::int64_t b_row;
  C* c;
  std::int64_t c_row;
};

/// kRows x kVectors vectors of C, kept in registers over the whole of k.
template <int kRows, int kVectors, bool kAccumulate, class C>
[[gnu::always_inline]] inline void block(const Product<C>& x, std::int64_t row,
                                         std::int64_t column) {
  using V = simd::Vector<C>;
  constexpr std::int64_t kLanes = simd::kLanes<C>;
  const C* a = x.a + row * x.a_row;
  const C* b = x.b + column;
  C* c = x.c + row * x.c_row + column;
  V sum[kRows][kVectors];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = kAccumulate ? simd::load(c + i * x.c_row + j * kLanes) : V{};
    }
  }
  for (std::int64_t p = 0; p < x.k; ++p) {
    V right[kVectors];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) right[j] = simd::load(b + p * x.b_row + j * kLanes);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const V left = simd::splat<V>(a[i * x.a_row + p * x.a_k]);
#pragma unroll
      for (int j = 0; j < kVectors; ++j) sum[i][j] += left * right[j];
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) simd::store(c + i * x.c_row + j * kLanes, sum[i][j]);
  }
}

template <int kRows, int kVectors, bool kAccumulate, class C>
[[gnu::always_inline]] inline void column_block(const Product<C>& x, std::int64_t column) {
  std::int64_t row = 0;
  for (; row + kRows <= x.m; row += kRows) block<kRows, kVectors, kAccumulate>(x, row, column);
  if constexpr (kRows > 4) {
    for (; row + 4 <= x.m; row += 4) block<4, kVectors, kAccumulate>(x, row, column);
  }
  for (; row < x.m; ++row) block<1, kVectors, kAccumulate>(x, row, column);
}

/// Each element is one chain of fused multiply-adds over k in order, so its bits do not depend on m
/// or n.
template <bool kAccumulate, class Isa, class C>
[[gnu::always_inline]] inline void product(Isa, const Product<C>& x) {
  constexpr std::int64_t kLanes = simd::kLanes<C>;
  std::int64_t column = 0;
  if constexpr (Isa::kManyRegisters) {
    for (; column + 4 * kLanes <= x.n; column += 4 * kLanes) {
      column_block<6, 4, kAccumulate>(x, column);
    }
    for (; column + 2 * kLanes <= x.n; column += 2 * kLanes) {
      column_block<12, 2, kAccumulate>(x, column);
    }
    for (; column < x.n; column += kLanes) column_block<12, 1, kAccumulate>(x, column);
  } else {
    for (; column < x.n; column += kLanes) column_block<6, 1, kAccumulate>(x, column);
  }
}

}  // namespace tessera::kernels::tile
