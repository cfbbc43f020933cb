#pragma once
// Sums without rounding: a fixed-point number that is wide enough for every sum of doubles, in
// digits of 32 bits (Kulisch's accumulator; R. Neal, Fast exact summation using small and large
// superaccumulators, 2015).

#include <cstdint>

#include "shared/kernels/types.hpp"
#include "shared/kernels/workspace.hpp"

namespace tessera::kernels {

/// Digits of a sum: number i counts 2^(32 i - kExactBias); the last two count what is positive or
/// negative infinity, and NaN is both. Each has 64 bits with a sign, so that sums of digits are
/// sums of numbers.
inline constexpr std::int64_t kExactDigits = 70;
inline constexpr int kExactBias = 1088;

/// digits[kExactDigits] = the sum of `count` elements of a floating type, or of their squares,
/// which are rounded to double before.
void exact_sum(Workspace& workspace, DType dtype, bool squares, std::int64_t count, const void* x,
               std::int64_t* digits);

/// The double that is nearest to a sum of digits.
double exact_value(const std::int64_t* digits);

}  // namespace tessera::kernels
