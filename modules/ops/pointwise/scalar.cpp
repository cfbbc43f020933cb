// An operand and a number: add_scalar, mul_scalar, pow_scalar.
module;
#include <cmath>
#include <span>
#include <string>

#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using operands::ValueArgs;

struct PowArgs {
  Dynamic<double> exponent;
};

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

template <kernels::BinaryOp op>
void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  if (w.counts()) {
    return;
  }
  kernels::binary_scalar(op, x.dtype(), x.numel(), x.raw_data(), call.args<ValueArgs>().value,
                         out[0].raw_data());
}

void pow_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  if (w.counts()) {
    return;
  }
  kernels::binary_scalar(kernels::BinaryOp::pow, x.dtype(), x.numel(), x.raw_data(),
                         call.args<PowArgs>().exponent, out[0].raw_data());
}

/// Adding a number to every term moves an average, a maximum and a minimum by that number, but a
/// sum by as many times it as there are ranks.
void add_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  for (const ReduceOp op : {ReduceOp::avg, ReduceOp::max, ReduceOp::min}) {
    strategies.push_back(rules::strategy({Partial(op)}, {Partial(op)}));
  }
}

void add_backward(const BackwardContext&, std::span<const Tensor> grads, std::span<Tensor> out) {
  out[0] = grads[0];
}

void mul_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  out[0] = mul_scalar(grads[0], context.args<ValueArgs>().value);
}

void pow_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  const double exponent = context.args<PowArgs>().exponent;
  out[0] = exponent == 0
               ? zeros_like(grads[0])
               : mul(grads[0], mul_scalar(pow_scalar(context.in[0], exponent - 1), exponent));
}

const operands::PointwiseForms add_forms = operands::register_pointwise<ValueArgs>(
    {.schema = "add_scalar(x)",
     .infer = infer,
     .cpu = in_workspace<cpu<kernels::BinaryOp::add>>,
     .workspace = workspace_of_copies<cpu<kernels::BinaryOp::add>>,
     .element = [](const Call&) -> std::string { return "a + p"; },
     .rule = add_rule,
     .backward = add_backward,
     .about = "x + value."});

const operands::PointwiseForms mul_forms = operands::register_pointwise<ValueArgs>(
    {.schema = "mul_scalar(x)",
     .infer = infer,
     .cpu = in_workspace<cpu<kernels::BinaryOp::mul>>,
     .workspace = workspace_of_copies<cpu<kernels::BinaryOp::mul>>,
     .element = [](const Call&) -> std::string { return "a * p"; },
     .rule = rules::pointwise_linear,
     .backward = mul_backward,
     .about = "x times value."});

const operands::PointwiseForms pow_forms =
    operands::register_pointwise<PowArgs>({.schema = "pow_scalar(x)",
                                           .infer = infer,
                                           .cpu = in_workspace<pow_cpu>,
                                           .workspace = workspace_of_copies<pow_cpu>,
                                           .rule = rules::pointwise,
                                           .backward = pow_backward,
                                           .saves_inputs = saves_all,
                                           .about = "x to the power of a number."});

/// An integer tensor and a number that is not whole are combined in f32.
Tensor fitting(const Tensor& x, double value) {
  return is_floating(x.dtype()) || std::trunc(value) == value ? x : cast(x, DType::f32);
}

}  // namespace

Tensor add_scalar(const Tensor& x, const Number& value) {
  operands::given("add_scalar", "x", x);
  return call_one(add_forms.op, {fitting(x, value.value())}, ValueArgs{value});
}

Tensor mul_scalar(const Tensor& x, const Number& value) {
  operands::given("mul_scalar", "x", x);
  return call_one(mul_forms.op, {fitting(x, value.value())}, ValueArgs{value});
}

Tensor pow_scalar(const Tensor& x, double exponent) {
  operands::given("pow_scalar", "x", x);
  return call_one(pow_forms.op, {fitting(x, exponent)}, PowArgs{exponent});
}

Tensor add_scalar_(const Tensor& x, const Number& value) {
  return call_one(add_forms.in_place, {x}, ValueArgs{value});
}

Tensor mul_scalar_(const Tensor& x, const Number& value) {
  return call_one(mul_forms.in_place, {x}, ValueArgs{value});
}

Tensor pow_scalar_(const Tensor& x, double exponent) {
  return call_one(pow_forms.in_place, {x}, PowArgs{exponent});
}

}  // namespace tessera::ops
