// The product over dims: prod.
module;
#include <cstdint>
#include <span>

#include "reduce/kernels/reduce.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :reduce_call;

namespace tessera::ops {
namespace {

using namespace reductions;
using operands::ReducedDims;

void prod_infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  const ReducedDims a = operands::reduced_dims(call);
  out.push_back({operands::reduced_shape(x.shape(), a.dims, a.keepdim),
                 is_floating(x.dtype()) ? x.dtype() : DType::i64});
}

void prod_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const operands::ReducedOperand r =
      reduced_operand(w, call.in[0], operands::reduced_dims(call).dims);
  kernels::reduce(w, kernels::ReduceOp::prod, r.x.dtype(), {r.outer, r.reduced, r.inner},
                  pointer<void>(w, r.x), pointer<void>(w, out[0]));
}

/// The product of the ranks' products.
void prod_rule(const RuleContext& context, Strategies& strategies) {
  const ReducedDims a = operands::reduced_dims(context.call);
  rules::kept_dims(context, strategies, a.dims, a.keepdim);
  for (const std::int64_t d : a.dims) {
    strategies.push_back(
        rules::strategy({Shard(static_cast<int>(d))}, {Partial(ReduceOp::product)}));
  }
  strategies.push_back(rules::strategy({Partial(ReduceOp::product)}, {Partial(ReduceOp::product)}));
}

/// The order of dims in which `dims` come last.
Dims with_dims_last(const Dims& dims, int count) {
  Dims order;
  for (int d = 0; d < count; ++d) {
    if (!dims.contains(d)) {
      order.push_back(d);
    }
  }
  for (const std::int64_t d : dims) {
    order.push_back(d);
  }
  return order;
}

/// An element's factor is the product of the others, zeros or not: of those before it and those
/// after it, with the reduced dims joined to one, the last.
void prod_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  const ReducedDims a = operands::reduced_dims(context);
  if (a.dims.empty() || x.numel() == 0) {
    out[0] = a.dims.empty() ? grads[0] : zeros_like(x);
    return;
  }
  const Dims order = with_dims_last(a.dims, x.dims());
  const Tensor lines = permute(cast(x, DType::f64), order);
  const int last = x.dims() - a.dims.size();
  Dims joined = lines.shape();
  joined.resize(last);
  joined.push_back(-1);
  const Tensor flat = a.dims.size() == 1 ? lines : reshape(lines, joined);
  const Tensor products_after = flip(products_before(flip(flat, {last}), last), {last});
  const Tensor factors = mul(products_before(flat, last), products_after);
  const Tensor split = a.dims.size() == 1 ? factors : reshape(factors, lines.shape());
  Dims back = order;
  for (int d = 0; d < order.size(); ++d) {
    back[static_cast<int>(order[d])] = d;
  }
  const Tensor g = operands::spread(cast(grads[0], DType::f64), a.dims, a.keepdim, x.shape());
  out[0] = cast(mul(g, permute(split, back)), x.dtype());
}

const Op& prod_op =
    register_op<ReducedDims>({.schema = "prod(x)",
                              .infer = prod_infer,
                              .cpu = in_workspace<prod_cpu>,
                              .workspace = workspace_of<prod_cpu>,
                              .rule = prod_rule,
                              .backward = prod_backward,
                              .saves_inputs = saves_all,
                              .about = "The product over dims (none: all); integers give i64."});

}  // namespace

Tensor prod(const Tensor& x, const Dims& dims, bool keepdim) {
  return operands::call_reduction(prod_op, x, dims, keepdim);
}

}  // namespace tessera::ops
