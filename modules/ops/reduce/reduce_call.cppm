// Shared parts of reductions: shapes, placements, and gradients along one dim.
module tessera.ops:reduce_call;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :operands;
import :pointwise;

namespace tessera::ops::reductions {

/// One result for each element that is kept, of x's floating type.
void infer_floating_reduction(const Call& call, ResultShapes& out);
/// The dims that are kept may be sharded.
void kept_dims_rule(const RuleContext& context, Strategies& strategies);

/// x, reduced over `dims` (sorted) with keepdim: without these dims if they shall not be kept.
Tensor without_dims(const Tensor& x, const Dims& dims, bool keepdim);

/// The largest (else smallest) magnitude over dims: the norm of order infinity (minus infinity).
Tensor extreme_magnitude(bool largest, const Tensor& x, const Dims& dims, bool keepdim,
                         bool across_ranks);

/// The products of all elements before each one.
Tensor products_before(const Tensor& x, int dim);

// Gradients along one dim, in f64 like the kernels: a product of many elements leaves the range of
// a narrow type where what it is multiplied with brings it back.

/// Calls `slope(x, g, dim)` for the gradient along the dim that the arguments begin with; an
/// element without neighbours passes its gradient on.
template <class F>
inline void along_dim(const BackwardContext& context, const Tensor& g, std::span<Tensor> out,
                      F slope) {
  const Tensor& x = context.in[0];
  if (x.dims() == 0 || x.numel() == 0) {
    out[0] = x.dims() == 0 ? g : zeros_like(x);
    return;
  }
  const int dim =
      operands::front_dim(context.op.name.c_str(), context.attributes.fixed()[0], x.dims());
  out[0] = cast(slope(cast(x, DType::f64), cast(g, DType::f64), dim), x.dtype());
}

}  // namespace tessera::ops::reductions
