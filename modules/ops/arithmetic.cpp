// Binary operators with broadcasting: mul, div, maximum, minimum, and mul_ that writes its first
// operand.
module;
#include <cstdint>
#include <span>

#include "kernels/pointwise.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {
namespace {

void infer(const Call& call, ResultShapes& out) {
  const Tensor& a = call.in[0];
  operands::check_same_type(call.op.name, a, call.in[1]);
  out.push_back(
      {operands::broadcast_shape(call.op.name, a.shape(), call.in[1].shape()), a.dtype()});
}

void infer_in_place(const Call& call, ResultShapes& out) {
  const Tensor& a = call.in[0];
  operands::check_same_type(call.op.name, a, call.in[1]);
  operands::check_broadcasts_to(call.op.name, call.in[1].shape(), a.shape());
  out.push_back({a.shape(), a.dtype()});
}

void apply(kernels::BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y) {
  if (y.numel() == 0) {
    return;
  }
  const auto type = static_cast<kernels::DType>(y.dtype());
  if (a.shape() == y.shape() && b.shape() == y.shape() && a.is_contiguous() && b.is_contiguous() &&
      y.is_contiguous()) {
    kernels::binary(op, type, y.numel(), a.raw_data(), b.raw_data(), y.raw_data());
    return;
  }
  kernels::binary_strided(op, type, y.shape().span(), a.raw_data(),
                          operands::broadcast_strides(a, y.shape()).span(), b.raw_data(),
                          operands::broadcast_strides(b, y.shape()).span(), y.raw_data(),
                          y.strides().span());
}

template <kernels::BinaryOp op>
void cpu(const Call& call, std::span<Tensor> out) {
  apply(op, call.in[0], call.in[1], out[0]);
}

void mul_in_place_cpu(const Call& call, std::span<Tensor> out) {
  ResultShapes checked;
  infer_in_place(call, checked);
  apply(kernels::BinaryOp::mul, call.in[0], call.in[1], out[0]);
}

void mul_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = operands::sum_to(mul(grads[0], context.in[1]), context.in_shapes[0]);
  }
  if (context.needs(1)) {
    out[1] = operands::sum_to(mul(grads[0], context.in[0]), context.in_shapes[1]);
  }
}

/// d(a/b) = da / b - (a/b) db / b
void div_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  const Tensor quotient = div(grads[0], context.in[1]);
  if (context.needs(0)) {
    out[0] = operands::sum_to(quotient, context.in_shapes[0]);
  }
  if (context.needs(1)) {
    out[1] = operands::sum_to(neg(mul(quotient, context.out[0])), context.in_shapes[1]);
  }
}

/// The larger (smaller) operand has the gradient; where both are equal each has half.
void choice_backward(const BackwardContext& context, const Tensor& g, bool larger,
                     std::span<Tensor> out) {
  const Tensor& a = context.in[0];
  const Tensor& b = context.in[1];
  const Tensor shared = where(eq(a, b), mul_scalar(g, 0.5), zeros_like(g));
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    if (context.needs(i)) {
      const Tensor chosen = (i == 0) == larger ? gt(a, b) : lt(a, b);
      out[i] = operands::sum_to(where(chosen, g, shared), context.in_shapes[i]);
    }
  }
}

void maximum_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  choice_backward(context, grads[0], true, out);
}

void minimum_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  choice_backward(context, grads[0], false, out);
}

const Op& mul_op = register_op({.schema = "mul(a, b)",
                                .infer = infer,
                                .cpu = cpu<kernels::BinaryOp::mul>,
                                .rule = rules::pointwise_multilinear,
                                .backward = mul_backward,
                                .saves_inputs = saves_all,
                                .about = "a b elementwise, with broadcasting."});

const Op& div_op = register_op({.schema = "div(a, b)",
                                .infer = infer,
                                .cpu = cpu<kernels::BinaryOp::div>,
                                .rule = rules::pointwise_linear_in_first,
                                .backward = div_backward,
                                .saves_inputs = 0b10,
                                .saves_outputs = saves_all,
                                .about = "a / b elementwise, with broadcasting."});

const Op& maximum_op = register_op({.schema = "maximum(a, b)",
                                    .infer = infer,
                                    .cpu = cpu<kernels::BinaryOp::maximum>,
                                    .rule = rules::pointwise,
                                    .backward = maximum_backward,
                                    .saves_inputs = saves_all,
                                    .about = "The larger of two elements; NaN where one is NaN."});

const Op& minimum_op = register_op({.schema = "minimum(a, b)",
                                    .infer = infer,
                                    .cpu = cpu<kernels::BinaryOp::minimum>,
                                    .rule = rules::pointwise,
                                    .backward = minimum_backward,
                                    .saves_inputs = saves_all,
                                    .about = "The smaller of two elements; NaN where one is NaN."});

const Op& mul_in_place = register_op({.schema = "mul_(a, b)",
                                      .infer = infer_in_place,
                                      .cpu = mul_in_place_cpu,
                                      .rule = rules::pointwise_linear_in_first,
                                      .in_place = true,
                                      .about = "Multiplies a by b, in a's memory."});

Tensor call_as(const Op& op, const Tensor& a, const Tensor& b, DType type) {
  return call_one(op, {cast(a, type), cast(b, type)});
}

Tensor call_promoted(const Op& op, const Tensor& a, const Tensor& b) {
  if (a.dtype() == b.dtype()) [[likely]] {
    return call_one(op, {a, b});
  }
  return call_as(op, a, b, operands::common_type(a, b));
}

}  // namespace

Tensor mul(const Tensor& a, const Tensor& b) { return call_promoted(mul_op, a, b); }

Tensor div(const Tensor& a, const Tensor& b) {
  if (!is_floating(a.dtype()) && !is_floating(b.dtype())) {
    return call_as(div_op, a, b, DType::f32);
  }
  return call_promoted(div_op, a, b);
}

Tensor maximum(const Tensor& a, const Tensor& b) { return call_promoted(maximum_op, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return call_promoted(minimum_op, a, b); }

Tensor mul_(const Tensor& a, const Tensor& b) {
  return call_one(mul_in_place, {a, cast(b, a.dtype())});
}

}  // namespace tessera::ops
