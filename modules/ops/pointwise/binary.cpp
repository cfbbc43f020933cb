// Operators of two operands with broadcasting: mul, div, pow, atan2, maximum, minimum, fmod,
// remainder, floor_divide. add and sub are in add_sub.cpp.
module;
#include <cstddef>
#include <span>

#include "pointwise/functions/arithmetic.hpp"
#include "pointwise/kernels/apply.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :pointwise_call;

namespace tessera::ops {
namespace {

using namespace elementwise;
using operands::PointwiseForms;
using operands::sum_to;

void infer_floating(const Call& call, ResultShapes& out) {
  operands::check_floating(call.op.name, call.in[0]);
  operands::infer_broadcast(call, out);
}

void mul_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = sum_to(mul(grads[0], context.in[1]), context.in_shapes[0]);
  }
  if (context.needs(1)) {
    out[1] = sum_to(mul(grads[0], context.in[0]), context.in_shapes[1]);
  }
}

/// d(a/b) = da / b - (a/b) db / b
void div_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  const Tensor quotient = div(grads[0], context.in[1]);
  if (context.needs(0)) {
    out[0] = sum_to(quotient, context.in_shapes[0]);
  }
  if (context.needs(1)) {
    out[1] = sum_to(neg(mul(quotient, context.out[0])), context.in_shapes[1]);
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
      out[i] = sum_to(where(chosen, g, shared), context.in_shapes[i]);
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

/// d(a^b) = b a^(b-1) da + a^b log(a) db; 0 for the exponent of a base 0.
void pow_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  const Tensor& a = context.in[0];
  const Tensor& b = context.in[1];
  if (context.needs(0)) {
    const Tensor slope = mul(b, pow(a, add_scalar(b, -1)));
    const Tensor constant = logical_and(eq(a, zeros_like(a)), eq(b, zeros_like(b)));
    out[0] = sum_to(mul(grads[0], masked_fill(slope, constant, 0)), context.in_shapes[0]);
  }
  if (context.needs(1)) {
    const Tensor base = where(eq(a, zeros_like(a)), ones_like(a), a);
    out[1] = sum_to(mul(grads[0], mul(pow(a, b), log(base))), context.in_shapes[1]);
  }
}

/// The angle of (x, y): (x dy - y dx) / (x^2 + y^2).
void atan2_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  const Tensor& y = context.in[0];
  const Tensor& x = context.in[1];
  const Tensor scaled = div(grads[0], add(square(x), square(y)));
  if (context.needs(0)) {
    out[0] = sum_to(mul(scaled, x), context.in_shapes[0]);
  }
  if (context.needs(1)) {
    out[1] = sum_to(neg(mul(scaled, y)), context.in_shapes[1]);
  }
}

/// a - b times a whole number, rounded as the operator does.
template <bool to_zero>
void rest_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = sum_to(grads[0], context.in_shapes[0]);
  }
  if (context.needs(1)) {
    const Tensor& a = context.in[0];
    const Tensor& b = context.in[1];
    const Tensor whole = to_zero ? trunc(div(a, b)) : floor_divide(a, b);
    out[1] = sum_to(neg(mul(grads[0], whole)), context.in_shapes[1]);
  }
}

const PointwiseForms mul_forms =
    operands::register_pointwise({.schema = "mul(a, b)",
                                  .infer = operands::infer_broadcast,
                                  .cpu = function_cpu<functions::Mul, 2>,
                                  .element = element<functions::Mul>,
                                  .rule = rules::pointwise_multilinear,
                                  .backward = mul_backward,
                                  .saves_inputs = saves_all,
                                  .about = "a b elementwise, with broadcasting."});

const PointwiseForms div_forms =
    operands::register_pointwise({.schema = "div(a, b)",
                                  .infer = operands::infer_broadcast,
                                  .cpu = function_cpu<functions::Div, 2>,
                                  .element = element<functions::Div>,
                                  .rule = rules::pointwise_linear_in_first,
                                  .backward = div_backward,
                                  .saves_inputs = 0b10,
                                  .saves_outputs = saves_all,
                                  .about = "a / b elementwise, with broadcasting."});

/// Operators that are linear in nothing.
template <class F>
PointwiseForms binary(const char* schema, const char* about,
                      void (*backward)(const BackwardContext&, std::span<const Tensor>,
                                       std::span<Tensor>) = nullptr,
                      void (*infer)(const Call&, ResultShapes&) = operands::infer_broadcast) {
  return operands::register_pointwise({.schema = schema,
                                       .infer = infer,
                                       .cpu = function_cpu<F, 2>,
                                       .element = element<F>,
                                       .rule = rules::pointwise,
                                       .backward = backward,
                                       .saves_inputs = backward == nullptr ? saves_none : saves_all,
                                       .about = about});
}

const PointwiseForms maximum_forms = binary<functions::Maximum>(
    "maximum(a, b)", "The larger of two elements; NaN if one is NaN.", maximum_backward);
const PointwiseForms minimum_forms = binary<functions::Minimum>(
    "minimum(a, b)", "The smaller of two elements; NaN if one is NaN.", minimum_backward);
const PointwiseForms pow_forms =
    binary<functions::Pow>("pow(a, exponent)", "a to the power of exponent.", pow_backward);
const PointwiseForms atan2_forms = binary<functions::Atan2>(
    "atan2(y, x)", "The angle of the point (x, y), in radians.", atan2_backward, infer_floating);
const PointwiseForms fmod_forms = binary<functions::Fmod>(
    "fmod(a, b)", "The remainder of a / b with the quotient rounded towards 0.",
    rest_backward<true>);
const PointwiseForms remainder_forms = binary<functions::Remainder>(
    "remainder(a, b)", "The remainder of a / b with the quotient rounded down.",
    rest_backward<false>);
const PointwiseForms floor_divide_forms =
    binary<functions::FloorDivide>("floor_divide(a, b)", "a / b rounded down; its gradient is 0.");

/// Integers meet in f32.
Tensor call_floating(const Op& op, const Tensor& a, const Tensor& b) {
  operands::given(op.name, "a", a);
  operands::given(op.name, "b", b);
  if (!is_floating(a.dtype()) && !is_floating(b.dtype())) {
    return call_one(op, {cast(a, DType::f32), cast(b, DType::f32)});
  }
  return operands::call_promoted(op, a, b);
}

}  // namespace

using operands::call_promoted;

Tensor mul(const Tensor& a, const Tensor& b) { return call_promoted(mul_forms.op, a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return call_floating(div_forms.op, a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return call_promoted(maximum_forms.op, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return call_promoted(minimum_forms.op, a, b); }
Tensor pow(const Tensor& a, const Tensor& b) { return call_promoted(pow_forms.op, a, b); }
Tensor atan2(const Tensor& y, const Tensor& x) { return call_floating(atan2_forms.op, y, x); }
Tensor fmod(const Tensor& a, const Tensor& b) { return call_promoted(fmod_forms.op, a, b); }

Tensor remainder(const Tensor& a, const Tensor& b) {
  return call_promoted(remainder_forms.op, a, b);
}

Tensor floor_divide(const Tensor& a, const Tensor& b) {
  return call_promoted(floor_divide_forms.op, a, b);
}

Tensor mul_(const Tensor& a, const Tensor& b) {
  return call_one(mul_forms.in_place, {a, operands::in_place_operand("mul_", a, b)});
}

Tensor div_(const Tensor& a, const Tensor& b) {
  operands::check_floating("div_", a);
  return call_one(div_forms.in_place, {a, operands::in_place_operand("div_", a, b)});
}

}  // namespace tessera::ops
