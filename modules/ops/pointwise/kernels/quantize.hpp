#pragma once
// 8-bit floating codes of numbers with a scale.

#include <cstdint>

#include "shared/kernels/types.hpp"

namespace tessera::kernels {

/// The largest finite number of an 8-bit floating type.
constexpr float largest_of(DType type) { return type == DType::f8e4m3 ? 448.0F : 57344.0F; }

/// The scale of numbers whose largest magnitude is `amax`: `most` / max(amax, 1e-12), computed in
/// f64; with `powers_of_two` rounded down to one. Source: torchao, float8_utils.py.
float scale_for(float amax, float most, bool powers_of_two);

/// Strides of a matrix's scales: 0 where rows, or columns, share theirs.
struct ScaleStrides {
  std::int64_t row = 0;
  std::int64_t column = 0;
};

// x: rows x columns, contiguous, of type f32, f64, bf16 or f16, which is read as f32.

/// out[...] = the largest magnitude of the elements that share a scale, NaN where one is NaN; 0 of
/// none. Where columns have scales of their own, rows share them.
void largest_magnitudes(DType type, std::int64_t rows, std::int64_t columns, const void* x,
                        ScaleStrides strides, float* out);

/// codes = x times its scale, cut off at the largest numbers of the type (f8e4m3, f8e5m2), and
/// rounded to it.
void quantize(DType type, DType code_type, std::int64_t rows, std::int64_t columns, const void* x,
              const float* scales, ScaleStrides strides, void* codes);

/// turned [columns, rows] = codes [rows, columns], of a byte each.
void turn_bytes(std::int64_t rows, std::int64_t columns, const void* codes, void* turned);

}  // namespace tessera::kernels
