// One number everywhere: fill_, ones_like, zeros_like.
module;
#include <span>

#include "pointwise/kernels/pointwise.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using operands::ValueArgs;

void infer_like(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void fill(const Tensor& x, double value) {
  const auto type = x.dtype();
  if (x.is_contiguous()) {
    kernels::fill(type, x.numel(), value, pointer<void>(x));
    return;
  }
  operands::copy_elements(full({}, value, x.dtype()), x);
}

void fill_cpu(const Call& call, std::span<Tensor> out) {
  fill(out[0], call.args<ValueArgs>().value);
}
void ones_cpu(const Call&, std::span<Tensor> out) { fill(out[0], 1); }
void zeros_cpu(const Call&, std::span<Tensor> out) { fill(out[0], 0); }

/// Every rank writes the same number: right for each way of joining them that keeps equal numbers.
void fill_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  for (const ReduceOp op : {ReduceOp::avg, ReduceOp::max, ReduceOp::min}) {
    strategies.push_back(rules::strategy({Partial(op)}, {Partial(op)}));
  }
}

void like_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  for (int op = 0; op < reduce_op_count; ++op) {
    strategies.push_back(rules::strategy({Partial(static_cast<ReduceOp>(op))}, {Replicate()}));
  }
}

const Op& fill_op = register_op<ValueArgs>({.schema = "fill_(x)",
                                            .infer = infer_like,
                                            .cpu = fill_cpu,
                                            .rule = fill_rule,
                                            .in_place = true,
                                            .moves_elements = true,
                                            .about = "Fills x with one number."});

const Op& ones_op = register_op({.schema = "ones_like(x)",
                                 .infer = infer_like,
                                 .cpu = ones_cpu,
                                 .rule = like_rule,
                                 .moves_elements = true,
                                 .about = "Ones in x's shape, type and layout."});

const Op& zeros_op = register_op({.schema = "zeros_like(x)",
                                  .infer = infer_like,
                                  .cpu = zeros_cpu,
                                  .rule = like_rule,
                                  .moves_elements = true,
                                  .about = "Zeros in x's shape, type and layout."});

}  // namespace

Tensor fill_(const Tensor& x, const Number& value) {
  return call_one(fill_op, {x}, ValueArgs{value});
}

Tensor ones_like(const Tensor& x) { return call_one(ones_op, {x}); }
Tensor zeros_like(const Tensor& x) { return call_one(zeros_op, {x}); }

}  // namespace tessera::ops
