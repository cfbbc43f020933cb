#pragma once
// What products of scaled operands need besides the product.

#include <cstdint>

namespace tessera::kernels {

/// out, contiguous with `dims` extents `shape`, has at each place the factor of its block: of a dim
/// of n = whole[d] elements, `extents[d]` factors are for one block of ceil(n / extents[d])
/// elements each. `extents` null: one number. shape[d] is whole[d], or 1.
void repeat_factors(int dims, const float* factors, const std::int64_t* extents,
                    const std::int64_t* shape, const std::int64_t* whole, float* out);

/// x[i] *= y[i].
void multiply(std::int64_t count, float* x, const float* y);

/// x [rows, columns], contiguous, times (row's factor times column's factor). Both lists may have
/// been repeated from one number.
void scale_product(std::int64_t rows, std::int64_t columns, float* x, const float* of_rows,
                   const float* of_columns);

}  // namespace tessera::kernels
