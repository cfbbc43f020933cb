// Elementwise functions of three operands: lerp, addcmul, addcdiv.
module;
#include <span>

#include "pointwise/functions/arithmetic.hpp"
#include "pointwise/kernels/apply.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :pointwise_call;

namespace tessera::ops {
namespace {

using namespace elementwise;
using operands::PointwiseForms;
using operands::sum_to;
using operands::ValueArgs;
using operands::WeightArgs;

/// A weight that is the same for all ranks joins what both ends have.
void lerp_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  pass_partial(context, strategies, 0b011);
}

void lerp_scalar_backward(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out) {
  const Number weight = context.args<WeightArgs>().weight;
  if (context.needs(0)) {
    out[0] = sum_to(mul_scalar(grads[0], 1 - weight), context.in_shapes[0]);
  }
  if (context.needs(1)) {
    out[1] = sum_to(mul_scalar(grads[0], weight), context.in_shapes[1]);
  }
}

void lerp_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  const Tensor& g = grads[0];
  const Tensor& weight = context.in[2];
  if (context.needs(0)) {
    out[0] = sum_to(mul(g, add_scalar(neg(weight), 1)), context.in_shapes[0]);
  }
  if (context.needs(1)) {
    out[1] = sum_to(mul(g, weight), context.in_shapes[1]);
  }
  if (context.needs(2)) {
    out[2] = sum_to(mul(g, sub(context.in[1], context.in[0])), context.in_shapes[2]);
  }
}

/// x and one factor are terms of sums (the dividend, of addcdiv).
void addcmul_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  pass_partial(context, strategies, 0b011);
  pass_partial(context, strategies, 0b101);
}

void addcmul_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  const Tensor scaled = mul_scalar(grads[0], context.args<ValueArgs>().value);
  out[0] = sum_to(grads[0], context.in_shapes[0]);
  if (context.needs(1)) {
    out[1] = sum_to(mul(scaled, context.in[2]), context.in_shapes[1]);
  }
  if (context.needs(2)) {
    out[2] = sum_to(mul(scaled, context.in[1]), context.in_shapes[2]);
  }
}

void addcdiv_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  const Tensor& b = context.in[2];
  const Tensor scaled = mul_scalar(grads[0], context.args<ValueArgs>().value);
  out[0] = sum_to(grads[0], context.in_shapes[0]);
  if (context.needs(1)) {
    out[1] = sum_to(div(scaled, b), context.in_shapes[1]);
  }
  if (context.needs(2)) {
    const Tensor quotient = div(context.in[1], b);
    out[2] = sum_to(neg(div(mul(scaled, quotient), b)), context.in_shapes[2]);
  }
}

const PointwiseForms lerp_scalar_forms = register_function<functions::Lerp, WeightArgs, 2, 1>(
    "lerp_scalar(start, end)", lerp_scalar_backward, "start + weight (end - start), for a number.",
    rules::pointwise_linear, saves_none);
const PointwiseForms lerp_forms = register_function<functions::Lerp, void, 3>(
    "lerp(start, end, weight)", lerp_backward,
    "start + weight (end - start), for a tensor of weights.", lerp_rule);
const PointwiseForms addcmul_forms = register_function<functions::Addcmul, ValueArgs, 3, 1>(
    "addcmul(x, a, b)", addcmul_backward, "x + value a b.", addcmul_rule, 0b110);
const PointwiseForms addcdiv_forms = register_function<functions::Addcdiv, ValueArgs, 3, 1>(
    "addcdiv(x, a, b)", addcdiv_backward, "x + value a / b.", lerp_rule, 0b110);

/// All operands in the type in which they meet.
Tensor call_three(const Op& op, const Tensor& a, const Tensor& b, const Tensor& c,
                  const Attributes& attributes = {}) {
  operands::given(op.name, op.operands[0].name, a);
  operands::given(op.name, op.operands[1].name, b);
  operands::given(op.name, op.operands[2].name, c);
  const DType type = promote(promote(a.dtype(), b.dtype()), c.dtype());
  return call_one(op, {cast(a, type), cast(b, type), cast(c, type)}, attributes);
}

/// In the type of the first one, which is written.
Tensor call_three_in_place(const PointwiseForms& forms, const Tensor& a, const Tensor& b,
                           const Tensor& c, const Attributes& attributes = {}) {
  const Op& op = forms.in_place;
  return call_one(
      op, {a, operands::in_place_operand(op.name, a, b), operands::in_place_operand(op.name, a, c)},
      attributes);
}

}  // namespace

Tensor lerp_scalar(const Tensor& start, const Tensor& end, const Number& weight) {
  operands::given("lerp_scalar", "start", start);
  operands::given("lerp_scalar", "end", end);
  const DType type = operands::common_type(start, end);
  return call_one(lerp_scalar_forms.op, {cast(start, type), cast(end, type)}, WeightArgs{weight});
}

Tensor lerp(const Tensor& start, const Tensor& end, const Tensor& weight) {
  return call_three(lerp_forms.op, start, end, weight);
}

Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return call_three(addcmul_forms.op, x, a, b, ValueArgs{value});
}

Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return call_three(addcdiv_forms.op, x, a, b, ValueArgs{value});
}

Tensor lerp_scalar_(const Tensor& start, const Tensor& end, const Number& weight) {
  return call_one(lerp_scalar_forms.in_place,
                  {start, operands::in_place_operand("lerp_scalar_", start, end)},
                  WeightArgs{weight});
}

Tensor lerp_(const Tensor& start, const Tensor& end, const Tensor& weight) {
  return call_three_in_place(lerp_forms, start, end, weight);
}

Tensor addcmul_(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return call_three_in_place(addcmul_forms, x, a, b, ValueArgs{value});
}

Tensor addcdiv_(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return call_three_in_place(addcdiv_forms, x, a, b, ValueArgs{value});
}

}  // namespace tessera::ops
