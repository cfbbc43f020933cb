#pragma once
// Reductions of [outer, reduced, inner] contiguous arrays to [outer, inner]. Sums add blocks of a
// fixed size in a fixed order, in float64 registers for floating types (bf16, f16 and f32 too), so
// they are accurate to the output's last place and do not depend on the number of threads. The
// workspace holds the results of the blocks.

#include <cstdint>

#include "shared/kernels/types.hpp"
#include "shared/kernels/workspace.hpp"

namespace tessera::kernels {

struct ReduceShape {
  std::int64_t outer = 1;
  std::int64_t reduced = 1;
  std::int64_t inner = 1;
};

enum class ReduceOp : std::uint8_t { sum, mean, prod, amax, amin, all, any };

/// y[o, i] = op over r of x[o, r, i]; no aliasing. All types (mean: floating ones only). y has x's
/// type, but sum and prod of i32, u8 and bool give i64, and all and any give bool. NaN passes
/// through amax and amin. Of nothing: sum 0, prod 1, mean NaN, all 1, any 0; amax and amin throw
/// std::invalid_argument.
void reduce(Workspace& workspace, ReduceOp op, DType dtype, const ReduceShape& shape, const void* x,
            void* y);

/// y[o, i] = the first r with the largest (smallest) x[o, r, i]; a NaN counts as largest
/// (smallest). Throws std::invalid_argument where reduced is 0 and there is output.
void argmax(Workspace& workspace, DType dtype, const ReduceShape& shape, const void* x,
            std::int64_t* y);
void argmin(Workspace& workspace, DType dtype, const ReduceShape& shape, const void* x,
            std::int64_t* y);

/// y[o, i] = (sum over r of |x[o, r, i]|^p)^(1/p), of floating types; for p = 0, how many elements
/// are not 0, and for an infinite p the largest (-infinity: smallest) magnitude. Of nothing, 0, but
/// the smallest magnitude of nothing throws std::invalid_argument.
void norm(Workspace& workspace, DType dtype, const ReduceShape& shape, const void* x, double p,
          void* y);

/// The sum of squares of `count` elements of a floating type, in double.
double sum_of_squares(Workspace& workspace, DType dtype, std::int64_t count, const void* x);

/// The largest absolute value (0 of nothing, NaN if there is one), floating types.
double max_abs(Workspace& workspace, DType dtype, std::int64_t count, const void* x);

/// y[o, r, i] = x[o, i] * scale: the gradient of sum (scale 1) and mean (1 / reduced). Floating
/// types.
void expand(DType dtype, const ReduceShape& shape, const void* x, double scale, void* y);

}  // namespace tessera::kernels
