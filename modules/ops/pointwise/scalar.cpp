// An operand and a number: add_scalar, mul_scalar, pow_scalar.
module;
#include <cmath>
#include <span>

#include "pointwise/functions/arithmetic.hpp"
#include "pointwise/functions/unary.hpp"
#include "pointwise/kernels/apply.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :pointwise_call;

namespace tessera::ops {
namespace {

using namespace elementwise;
using operands::ValueArgs;

struct PowArgs {
  Dynamic<double> exponent;
};

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

/// Powers that need no logarithm have kernels of their own.
const kernels::FunctionKernels* simple_power(double exponent) {
  return exponent == 2      ? &kernels::kernels_of<functions::Square, 1>()
         : exponent == 0.5  ? &kernels::kernels_of<functions::Sqrt, 1>()
         : exponent == -0.5 ? &kernels::kernels_of<functions::Rsqrt, 1>()
         : exponent == -1   ? &kernels::kernels_of<functions::Reciprocal, 1>()
                            : nullptr;
}

void pow_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const double exponent = call.args<PowArgs>().exponent;
  const auto* const simple = is_floating(out[0].dtype()) ? simple_power(exponent) : nullptr;
  if (simple != nullptr) {
    apply_to_copies(*simple, call, {}, out[0], w);
  } else {
    apply_to_copies(kernels::kernels_of<functions::Pow, 1, 1>(), call, {&exponent, 1}, out[0], w);
  }
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
     .cpu = in_workspace<copied_cpu<functions::Add, 1, 1>>,
     .workspace = workspace_of_copies<copied_cpu<functions::Add, 1, 1>>,
     .element = element<functions::Add>,
     .rule = add_rule,
     .backward = add_backward,
     .about = "x + value."});

const operands::PointwiseForms mul_forms = operands::register_pointwise<ValueArgs>(
    {.schema = "mul_scalar(x)",
     .infer = infer,
     .cpu = in_workspace<copied_cpu<functions::Mul, 1, 1>>,
     .workspace = workspace_of_copies<copied_cpu<functions::Mul, 1, 1>>,
     .element = element<functions::Mul>,
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
  return call_one(add_forms.op, {fitting(x, value.untraced_value())}, ValueArgs{value});
}

Tensor mul_scalar(const Tensor& x, const Number& value) {
  operands::given("mul_scalar", "x", x);
  return call_one(mul_forms.op, {fitting(x, value.untraced_value())}, ValueArgs{value});
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
