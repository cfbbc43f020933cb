// The product along one dim: prod.
module;
#include <cstdint>
#include <span>

#include "reduce/kernels/reduce.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :reduce_call;

namespace tessera::ops {
namespace {

using namespace reductions;

struct Arguments {
  Dims dim;  // none for a tensor without dims
  bool keepdim;
};

Arguments read_prod(const operands::ReducedDim& args, int count) {
  return {operands::sorted_dims("prod", {args.dim}, count), args.keepdim};
}

void prod_infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  const Arguments a = read_prod(call.args<operands::ReducedDim>(), x.dims());
  out.push_back({operands::reduced_shape(x.shape(), a.dim, a.keepdim),
                 is_floating(x.dtype()) ? x.dtype() : DType::i64});
}

void prod_cpu(const Call& call, std::span<Tensor> out) {
  const Arguments a = read_prod(call.args<operands::ReducedDim>(), call.in[0].dims());
  const operands::ReducedOperand r = operands::reduced_operand(call.in[0], a.dim);
  kernels::reduce(kernels::ReduceOp::prod, r.x.dtype(), {r.outer, r.reduced, r.inner},
                  r.x.raw_data(), out[0].raw_data());
}

void prod_rule(const RuleContext& context, Strategies& strategies) {
  const Arguments a =
      read_prod(context.call.args<operands::ReducedDim>(), context.call.in[0].dims());
  rules::kept_dims(context, strategies, a.dim, a.keepdim);
}

/// An element's factor is the product of the others, zeros or not: of those before it and those
/// after it.
void prod_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  const Arguments a = read_prod(context.args<operands::ReducedDim>(), context.in[0].dims());
  along_dim(context, grads[0], out, [&](const Tensor& x, const Tensor& g, int dim) {
    const Tensor products_after = flip(products_before(flip(x, {dim}), dim), {dim});
    return mul(operands::spread(g, a.dim, a.keepdim, x.shape()),
               mul(products_before(x, dim), products_after));
  });
}

const Op& prod_op =
    register_op<operands::ReducedDim>({.schema = "prod(x)",
                                       .infer = prod_infer,
                                       .cpu = prod_cpu,
                                       .rule = prod_rule,
                                       .backward = prod_backward,
                                       .saves_inputs = saves_all,
                                       .about = "The product along dim; integers give i64."});

}  // namespace

Tensor prod(const Tensor& x, std::int64_t dim, bool keepdim) {
  operands::given("prod", "x", x);
  return call_one(prod_op, {x},
                  operands::ReducedDim{operands::front_dim("prod", dim, x.dims()), keepdim});
}

}  // namespace tessera::ops
