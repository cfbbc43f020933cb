// A choice by a mask, element by element: where, masked_fill.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "pointwise/kernels/pointwise.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::ops {
namespace {

void check_mask(std::string_view op, const Tensor& mask) {
  if (mask.dtype() != DType::boolean) {
    fail(fmt::format("{}: the mask holds bool (got {}); compare it with a number", op,
                     name_of(mask.dtype())));
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
  kernels::where_strided(static_cast<kernels::DType>(out[0].dtype()), shape.span(),
                         static_cast<const std::uint8_t*>(call.in[0].raw_data()), strides(0).span(),
                         call.in[1].raw_data(), strides(1).span(), call.in[2].raw_data(),
                         strides(2).span(), out[0].raw_data(), out[0].strides().span());
}

/// The condition is the same on all ranks: then the choice is linear in a and b together.
void where_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  for (int op = 0; op < reduce_op_count; ++op) {
    const Placement p = Partial(static_cast<ReduceOp>(op));
    strategies.push_back(rules::strategy({Replicate(), p, p}, {p}));
  }
}

extern const Op& masked_backward_op;

void where_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  const Tensor& condition = context.in[0];
  if (context.needs(1)) {
    out[1] =
        operands::sum_to(where(condition, grads[0], zeros_like(grads[0])), context.in_shapes[1]);
  }
  if (context.needs(2)) {
    const Tensor kept = call_one(masked_backward_op, {grads[0], condition});
    out[2] = operands::sum_to(kept, context.in_shapes[2]);
  }
}

void fill_infer(const Call& call, ResultShapes& out) {
  check_mask(call.op.name, call.in[1]);
  operands::check_broadcasts_to(call.op.name, call.in[1].shape(), call.in[0].shape());
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void fill(const Call& call, std::span<Tensor> out, double value) {
  const Tensor x = operands::contiguous(call.in[0]);
  Tensor mask = call.in[1];
  if (!(mask.shape() == x.shape()) || !mask.is_contiguous()) {
    mask = empty(x.shape(), DType::boolean);
    operands::copy_elements(call.in[1], mask);
  }
  kernels::masked_fill(static_cast<kernels::DType>(x.dtype()), x.numel(), x.raw_data(),
                       static_cast<const std::uint8_t*>(mask.raw_data()), value, out[0].raw_data());
}

void fill_cpu(const Call& call, std::span<Tensor> out) { fill(call, out, call.read().scalar()); }
void masked_cpu(const Call& call, std::span<Tensor> out) { fill(call, out, 0); }

void fill_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = call_one(masked_backward_op, {grads[0], context.in[1]});
  }
}

// Not masked_fill() with 0: this is linear, so it takes terms of a sum.
const Op& masked_backward_op = register_op({.schema = "masked_fill_backward(dy, mask)",
                                            .infer = fill_infer,
                                            .cpu = masked_cpu,
                                            .rule = rules::pointwise_linear_in_first,
                                            .backward = fill_backward,
                                            .saves_inputs = 0b10,
                                            .about = "dy where the mask does not hold, else 0."});

const Op& where_op = register_op({.schema = "where(condition, a, b)",
                                  .infer = where_infer,
                                  .cpu = where_cpu,
                                  .rule = where_rule,
                                  .backward = where_backward,
                                  .saves_inputs = 0b001,
                                  .about = "a where the condition holds, else b."});

const operands::PointwiseForms fill_forms =
    operands::register_pointwise({.schema = "masked_fill(x, mask; value: float)",
                                  .infer = fill_infer,
                                  .cpu = fill_cpu,
                                  .rule = rules::pointwise,
                                  .backward = fill_backward,
                                  .saves_inputs = 0b10,
                                  .about = "value where the mask holds, else x."});

}  // namespace

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  operands::given("where", "a", a);
  operands::given("where", "b", b);
  const DType type = operands::common_type(a, b);
  return call_one(where_op, {condition, cast(a, type), cast(b, type)});
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  return call_one(fill_forms.op, {x, mask}, Attributes().scalar(value));
}

Tensor masked_fill_(const Tensor& x, const Tensor& mask, double value) {
  return call_one(fill_forms.in_place, {x, mask}, Attributes().scalar(value));
}

}  // namespace tessera::ops
