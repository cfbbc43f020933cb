#pragma once
// The transposition of a matrix in memory.

#include <cstdint>

namespace tessera::kernels {

/// y[i, j] = x[j, i] for i < rows and j < columns: x's rows are x_stride elements apart, y's
/// y_stride. Word: an unsigned integer of 8 to 64 bits, as wide as the elements. past_caches: lines
/// are written past the caches, where y's alignment allows it.
template <class Word>
void transpose(std::int64_t rows, std::int64_t columns, const Word* x, std::int64_t x_stride,
               Word* y, std::int64_t y_stride, bool past_caches);

}  // namespace tessera::kernels
