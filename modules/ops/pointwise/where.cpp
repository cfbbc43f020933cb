// A choice by a mask, element by element: where.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "pointwise/functions/comparisons.hpp"
#include "pointwise/kernels/pointwise.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :pointwise_call;

namespace tessera::ops {
namespace {

void check_mask(std::string_view op, const Tensor& mask) {
  if (mask.dtype() != DType::boolean) {
    fail({.thing = std::string(op),
          .wrong = "the mask has the wrong type",
          .expected = "bool",
          .got = std::string(name_of(mask.dtype())),
          .advice = "compare it with a number"});
  }
}

void where_infer(const Call& call, ResultShapes& out) {
  const Tensor& a = call.in[1];
  check_mask("where", call.in[0]);
  operands::check_same_type("where", a, call.in[2]);
  const Dims values = operands::broadcast_shape("where", a.shape(), call.in[2].shape());
  out.push_back({operands::broadcast_shape("where", call.in[0].shape(), values), a.dtype()});
}

void where_cpu(const Call& call, std::span<Tensor> out) {
  const Dims& shape = out[0].shape();
  if (out[0].numel() == 0) {
    return;
  }
  const auto strides = [&](std::size_t i) {
    return operands::broadcast_strides(call.in[i], shape);
  };
  kernels::where_strided(out[0].dtype(), shape.span(), pointer<const std::uint8_t>(call.in[0]),
                         strides(0).span(), pointer<void>(call.in[1]), strides(1).span(),
                         pointer<void>(call.in[2]), strides(2).span(), pointer<void>(out[0]),
                         out[0].strides().span());
}

/// The condition is the same on all ranks: then the choice is linear in a and b together.
void where_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  for (int op = 0; op < reduce_op_count; ++op) {
    const Placement p = Partial(static_cast<ReduceOp>(op));
    strategies.push_back(rules::strategy({Replicate(), p, p}, {p}));
  }
}

void where_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  static const Op& masked = find_op("masked_fill_backward");
  const Tensor& condition = context.in[0];
  if (context.needs(1)) {
    out[1] =
        operands::sum_to(where(condition, grads[0], zeros_like(grads[0])), context.in_shapes[1]);
  }
  if (context.needs(2)) {
    const Tensor kept = call_one(masked, {grads[0], condition});
    out[2] = operands::sum_to(kept, context.in_shapes[2]);
  }
}

const Op& where_op = register_op({.schema = "where(condition, a, b)",
                                  .infer = where_infer,
                                  .cpu = where_cpu,
                                  .element = elementwise::element<functions::Where>,
                                  .rule = where_rule,
                                  .backward = where_backward,
                                  .saves_inputs = 0b001,
                                  .about = "a where the condition is true, else b."});

}  // namespace

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  operands::given("where", "a", a);
  operands::given("where", "b", b);
  const DType type = operands::common_type(a, b);
  return call_one(where_op, {condition, cast(a, type), cast(b, type)});
}

}  // namespace tessera::ops
