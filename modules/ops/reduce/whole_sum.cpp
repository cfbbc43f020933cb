// The whole of a sum that ranks hold in parts: whole_sum, a declared reduction.
module;
#include <span>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void cpu(const Call& call, std::span<Tensor> out) { copy_into(out[0], call.in[0]); }

void rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  strategies.push_back(rules::strategy({Partial()}, {Replicate()}));
  strategies.back().reductions = {InnerReduction{.op = ReduceOp::sum}};
}

void composed(const Call& call, const InnerReduce& reduce, Tensors& out) {
  out.push_back(reduce(call.in[0], ReduceOp::sum));
}

/// The value is the same in another layout, so the gradient passes. What the terms were made of
/// needs all of it.
void backward(const BackwardContext&, std::span<const Tensor> grads, std::span<Tensor> out) {
  out[0] = operands::whole_sum(grads[0]);
}

const Op& whole_sum_op = register_op(
    {.schema = "whole_sum(x)",
     .infer = infer,
     .cpu = cpu,
     .rule = rule,
     .composed = composed,
     .backward = backward,
     .about = "x, summed over the ranks if it is Partial(sum); used where a caller lets "
              "an operator reduce across ranks."});

}  // namespace
}  // namespace tessera::ops

namespace tessera::operands {

Tensor whole_sum(const Tensor& x) {
  bool terms = false;
  for (int axis = 0; x.is_distributed() && axis < x.layout().ndim(); ++axis) {
    terms = terms || x.layout().placement(axis) == Partial();
  }
  return terms ? call_one(ops::whole_sum_op, {x}) : x;
}

}  // namespace tessera::operands
