// Whether all elements over dims are not 0, or any of them: all, any.
module;
#include <cstdint>
#include <span>

#include "reduce/kernels/reduce.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using operands::ReducedDims;

template <kernels::ReduceOp op>
void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const operands::ReducedOperand r =
      reduced_operand(w, call.in[0], operands::reduced_dims(call).dims);
  kernels::reduce(w, op, r.x.dtype(), {r.outer, r.reduced, r.inner}, pointer<void>(w, r.x),
                  pointer<void>(w, out[0]));
}

// all and any: the minimum and the maximum of the ranks' answers.

void infer_bool(const Call& call, ResultShapes& out) {
  const ReducedDims a = operands::reduced_dims(call);
  out.push_back({operands::reduced_shape(call.in[0].shape(), a.dims, a.keepdim), DType::boolean});
}

template <tessera::ReduceOp op>
void bool_rule(const RuleContext& context, Strategies& strategies) {
  const ReducedDims a = operands::reduced_dims(context.call);
  rules::kept_dims(context, strategies, a.dims, a.keepdim);
  for (const std::int64_t d : a.dims) {
    strategies.push_back(rules::strategy({Shard(static_cast<int>(d))}, {Partial(op)}));
  }
}

const Op& all_op =
    register_op<operands::ReducedDims>({.schema = "all(x)",
                                        .infer = infer_bool,
                                        .cpu = in_workspace<cpu<kernels::ReduceOp::all>>,
                                        .workspace = workspace_of<cpu<kernels::ReduceOp::all>>,
                                        .rule = bool_rule<tessera::ReduceOp::min>,
                                        .about = "True if no element over dims (none: all) is 0."});

const Op& any_op = register_op<operands::ReducedDims>(
    {.schema = "any(x)",
     .infer = infer_bool,
     .cpu = in_workspace<cpu<kernels::ReduceOp::any>>,
     .workspace = workspace_of<cpu<kernels::ReduceOp::any>>,
     .rule = bool_rule<tessera::ReduceOp::max>,
     .about = "True if an element over dims (none: all) is not 0."});

}  // namespace

Tensor all(const Tensor& x, const Dims& dims, bool keepdim) {
  return operands::call_reduction(all_op, x, dims, keepdim);
}

Tensor any(const Tensor& x, const Dims& dims, bool keepdim) {
  return operands::call_reduction(any_op, x, dims, keepdim);
}

}  // namespace tessera::ops
