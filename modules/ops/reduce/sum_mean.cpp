// Sums and means over dims: sum, mean.
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

void infer_sum(const Call& call, ResultShapes& out) {
  const ReducedDims a = operands::reduced_dims(call);
  const DType type = call.in[0].dtype();
  out.push_back({operands::reduced_shape(call.in[0].shape(), a.dims, a.keepdim),
                 is_floating(type) ? type : DType::i64});
}

void infer_mean(const Call& call, ResultShapes& out) {
  operands::check_floating("mean", call.in[0]);
  infer_sum(call, out);
}

template <kernels::ReduceOp op>
void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const operands::ReducedOperand r =
      reduced_operand(w, call.in[0], operands::reduced_dims(call).dims);
  kernels::reduce(w, op, r.x.dtype(), {r.outer, r.reduced, r.inner}, pointer<void>(w, r.x),
                  pointer<void>(w, out[0]));
}

/// Op::workspace: few elements of a dense matrix are reduced in one block, without a copy.
template <kernels::ReduceOp op>
std::size_t workspace(const Call& call, std::span<const Tensor> out) {
  constexpr std::int64_t few = 1 << 14;
  const Tensor& x = call.in[0];
  if ((x.impl()->keys & dense_key) != 0 && x.dims() <= 2 && x.numel() <= few) {
    return 0;
  }
  return workspace_of<cpu<op>>(call, out);
}

void sum_rule(const RuleContext& context, Strategies& strategies) {
  const ReducedDims a = operands::reduced_dims(context.call);
  rules::kept_dims(context, strategies, a.dims, a.keepdim);
  for (const std::int64_t d : a.dims) {
    strategies.push_back(rules::strategy({Shard(static_cast<int>(d))}, {Partial()}));
  }
  rules::linear(context, strategies);
}

/// The mean of the shards' means is the mean only of shards of one size.
void mean_rule(const RuleContext& context, Strategies& strategies) {
  const ReducedDims a = operands::reduced_dims(context.call);
  rules::kept_dims(context, strategies, a.dims, a.keepdim);
  for (const std::int64_t dim : a.dims) {
    const int d = static_cast<int>(dim);
    const std::int64_t extent = context.call.in[0].shape()[d];
    if (extent > 0 && extent % context.shards_of(0, d) == 0) {
      strategies.push_back(rules::strategy({Shard(d)}, {Partial(ReduceOp::avg)}));
    }
  }
  rules::linear(context, strategies);
}

Tensor spread_back(const BackwardContext& context, const Tensor& g, const ReducedDims& a) {
  const Tensor whole = operands::spread(g, a.dims, a.keepdim, context.in_shapes[0]);
  return cast(whole, context.in_dtypes[0]);
}

void sum_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  out[0] = spread_back(context, grads[0], operands::reduced_dims(context));
}

void mean_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  const ReducedDims a = operands::reduced_dims(context);
  std::int64_t count = 1;
  for (const std::int64_t d : a.dims) {
    count *= context.in_shapes[0][static_cast<int>(d)];
  }
  out[0] = spread_back(context, mul_scalar(grads[0], 1.0 / static_cast<double>(count)), a);
}

const Op& sum_op = register_op<operands::ReducedDims>(
    {.schema = "sum(x)",
     .infer = infer_sum,
     .cpu = in_workspace<cpu<kernels::ReduceOp::sum>>,
     .workspace = workspace<kernels::ReduceOp::sum>,
     .rule = sum_rule,
     .backward = sum_backward,
     .about = "The sum over dims (none: all); integers sum to i64."});

const Op& mean_op =
    register_op<operands::ReducedDims>({.schema = "mean(x)",
                                        .infer = infer_mean,
                                        .cpu = in_workspace<cpu<kernels::ReduceOp::mean>>,
                                        .workspace = workspace<kernels::ReduceOp::mean>,
                                        .rule = mean_rule,
                                        .backward = mean_backward,
                                        .about = "The mean over dims (none: all)."});

}  // namespace

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) {
  return operands::call_reduction(sum_op, x, dims, keepdim);
}

Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  return operands::call_reduction(mean_op, x, dims, keepdim);
}

}  // namespace tessera::ops
