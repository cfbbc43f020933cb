module;
#include <cstdint>
#include <span>

#include "sort/kernels/sort.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :sort_call;

namespace tessera::ops::sorting {

void sort_lines(Workspace& w, const Tensor& x, const Dims& dim, bool descending,
                std::span<const Tensor> out) {
  const operands::ReducedOperand r = reduced_operand(w, x, dim);
  const std::int64_t count = dim.empty() ? 1 : out[0].shape()[static_cast<int>(dim[0])];
  kernels::sort(w, x.dtype(), {r.outer, r.reduced, r.inner, count}, descending,
                pointer<void>(w, r.x), pointer<void>(w, out[0]), pointer<std::int64_t>(w, out[1]));
}

void other_dims(const RuleContext& context, Strategies& strategies, const Dims& sorted) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (!sorted.contains(d)) {
      rules::same_dim(context, strategies, d);
    }
  }
}

Tensor to_sources(const BackwardContext& context, const Tensor& grad, std::int64_t dim) {
  const Tensor& x = context.in[0];
  return grad && x.dims() > 0 ? scatter_add(zeros_like(x), context.out[1], grad, dim) : grad;
}

}  // namespace tessera::ops::sorting
