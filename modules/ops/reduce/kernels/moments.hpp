#pragma once
// Variances, norms and logarithms of sums of exponentials over a dim of [outer, reduced, inner]
// arrays. The elements are read from memory once, in blocks of a fixed size that are joined in
// order in double precision, so the results do not depend on the number of threads.

#include "reduce/kernels/reduce.hpp"

namespace tessera::kernels {

/// y[o, i] = the mean square of the distance of x[o, r, i] to its mean over r, for
/// reduced - correction elements (NaN if these are 0 or fewer); `root`: its square root. Floating
/// types.
void variance(Workspace& workspace, DType dtype, const ReduceShape& shape, const void* x,
              double correction, bool root, void* y);

/// y[o, i] = log(sum over r of exp(x[o, r, i])), without overflow; -infinity of nothing. Floating
/// types. The exponentials are computed in the type that x computes in.
void log_sum_exp(Workspace& workspace, DType dtype, const ReduceShape& shape, const void* x,
                 void* y);

}  // namespace tessera::kernels
