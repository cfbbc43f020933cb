#pragma once
// Products of integers: rows that are rounded to 8 bits with weights that are codes of few bits.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "coded_product.hpp"

namespace tessera::kernels {

/// A row's elements, 32 at a time, as codes of 8 bits: code = x / scale, rounded to the nearest
/// (ties to even), scale = the largest |x| of the 32 divided by 127. Where that is below 2^-126 the
/// scale and the codes are 0; where an element is not finite, the scale is NaN.
inline constexpr std::int64_t kRoundedElements = 32;

/// Whether the elements of a row are integers, times scales.
template <class Codes>
inline constexpr bool is_integer =
    !std::is_same_v<Codes, HalfCodes> && !std::is_same_v<Codes, BFloat16Codes>;

/// Rows that are rounded so.
struct RoundedRows;

/// A product whose columns are computed some at a time. Its rows are those of x from `row` on.
struct IntegerTask {
  CodedProduct product;
  void (*panels)(const CodedProduct& product, const RoundedRows& x, std::int64_t row,
                 std::int64_t first, std::int64_t last) = nullptr;
};

/// Of which codes it has.
template <class Codes>
  requires is_integer<Codes>
IntegerTask integer_task(const CodedProduct& product);

/// All of them in one loop, with rows `a` of x [m, k]: c [m', n] = a [m', k], rounded so, times the
/// transpose of a weight [n, k]. An element is a sum in f32 over the groups of 32 elements (of 16,
/// where the weight has scales of these), one after the other:
///
///     sum += float(Σ code_x * code_w) * (scale_w * scale_x) [ - minimum_w * (float(Σ code_x) *
///     scale_x) ]
///
/// The sums of integers are exact, each other operation is rounded once and none is fused: an
/// element has the same bits with every instruction set, number of rows and of threads.
void integer_products(const float* x, std::int64_t m, std::int64_t k,
                      std::span<const IntegerTask> tasks);

}  // namespace tessera::kernels
