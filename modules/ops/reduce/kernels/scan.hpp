#pragma once
// Along one dim, of all elements up to each one: sums, products, logarithms of sums of
// exponentials, and the recurrence that is the gradient of products. Computed in double (integers:
// in 64 bits) and rounded once; but exponentials and logarithms are computed in the type that x
// computes in.

#include <cstdint>

#include "reduce/kernels/reduce.hpp"

namespace tessera::kernels {

enum class ScanOp : std::uint8_t { sum, prod, log_sum_exp };

/// y[o, r, i] = op over s <= r (from_end: s >= r) of x[o, s, i]; no aliasing. All types
/// (log_sum_exp: floating ones only, else std::invalid_argument); y has x's type, but i64 for
/// integers and bool. Long lines are joined from parts of a fixed size, so the bits do not depend
/// on the number of threads.
void scan(ScanOp op, bool from_end, DType dtype, const ReduceShape& shape, const void* x, void* y);

/// scan's log_sum_exp.
void log_scan(bool from_end, DType dtype, const ReduceShape& shape, const void* x, void* y);

/// y[o, r, i] = x[o, r, i] + factor[o, r, i] * y[o, r - 1, i] (from_end: r + 1); the first factor
/// of a line is not used. Floating types.
void linear_recurrence(bool from_end, DType dtype, const ReduceShape& shape, const void* x,
                       const void* factor, void* y);

}  // namespace tessera::kernels
