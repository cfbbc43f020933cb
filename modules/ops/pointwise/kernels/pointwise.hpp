#pragma once
// Elementwise kernels over untyped arrays, besides those of functions of elements (apply.hpp).
// Contiguous ones take a count; strided ones extents and strides (in elements, 0 repeats an
// operand), at most 8 dims. Floating types compute in float, double in double. Which combinations
// exist stands at each function; others throw std::invalid_argument.

#include <cstdint>
#include <span>

#include "shared/kernels/types.hpp"

namespace tessera::kernels {

inline constexpr int kMaxDims = 8;
using Extents = std::span<const std::int64_t>;

/// y = a + alpha b. y may be a or b. All types but bool.
void add(DType dtype, std::int64_t count, const void* a, const void* b, double alpha, void* y);
/// y = condition ? a : b (condition: bool bytes). y may be a or b. All types.
void where(DType dtype, std::int64_t count, const std::uint8_t* condition, const void* a,
           const void* b, void* y);
void where_strided(DType dtype, Extents extents, const std::uint8_t* condition,
                   Extents condition_strides, const void* a, Extents a_strides, const void* b,
                   Extents b_strides, void* y, Extents y_strides);

/// y = mask ? value : x. y may be x. All types.
void masked_fill(DType dtype, std::int64_t count, const void* x, const std::uint8_t* mask,
                 double value, void* y);

/// y = value. All types.
void fill(DType dtype, std::int64_t count, double value, void* y);

/// y = x converted: floats round to nearest even, floating to integer truncates towards 0 (NaN
/// gives 0, out of range saturates), to bool is x != 0. x and y alias only if the types are equal.
void cast(DType from, DType to, std::int64_t count, const void* x, void* y);

/// y[index] = x[index], both strided: transposes (in tiles), slices, broadcasts. No aliasing.
void copy_strided(DType dtype, Extents extents, const void* x, Extents x_strides, void* y,
                  Extents y_strides);

}  // namespace tessera::kernels
