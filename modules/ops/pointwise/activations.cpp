// Elementwise functions with numbers as arguments (leaky_relu, elu, softplus, hardtanh,
// nan_to_num), of three operands (lerp, addcmul, addcdiv), and the terms of losses.
module;
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>

#include "pointwise/kernels/functions.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using kernels::FunctionOp;
using operands::PointwiseForms;
using operands::sum_to;

/// One type, all operands broadcast together.
void infer(const Call& call, ResultShapes& out) {
  operands::check_floating(call.op.name, call.in[0]);
  Dims shape = call.in[0].shape();
  for (const Tensor& x : call.in.subspan(1)) {
    operands::check_same_type(call.op.name, call.in[0], x);
    shape = operands::broadcast_shape(call.op.name, shape, x.shape());
  }
  out.push_back({shape, call.in[0].dtype()});
}

void apply(FunctionOp op, const Call& call, Tensor& y) {
  if (y.numel() == 0) {
    return;
  }
  std::array<Dims, 3> strides;
  std::array<kernels::Operand, 3> in;
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    strides[i] = operands::broadcast_strides(call.in[i], y.shape());
    in[i] = {call.in[i].raw_data(), strides[i].span()};
  }
  std::array<double, 3> numbers{};
  AttributeReader read = call.read();
  for (std::size_t i = 0; i < call.attributes.free().size(); ++i) {
    numbers[i] = read.scalar();
  }
  kernels::function(op, kernel_type(y.dtype()), y.shape().span(),
                    std::span(in).first(call.in.size()), numbers, y.raw_data());
}

template <FunctionOp op>
void cpu(const Call& call, std::span<Tensor> out) {
  apply(op, call, out[0]);
}

// Functions of one operand, each with a gradient that is linear in the second operand of its own
// operator.

void gradient_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  pass_partial(context, strategies, 0b10);
}

void leaky_relu_backward(const BackwardContext& context, std::span<const Tensor> grads,
                         std::span<Tensor> out);
void elu_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out);
void softplus_backward(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out);
void hardtanh_backward(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out);

/// The second derivative is 0, or `second` of x.
using Second = Tensor (*)(const Tensor& x, AttributeReader numbers);

template <Second second>
void gradient_backward(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out) {
  if (context.needs(1)) {
    out[1] = call_one(context.op, {context.in[0], grads[0]}, context.attributes);
  }
  if constexpr (second != nullptr) {
    if (context.needs(0)) {
      out[0] = mul(mul(grads[0], context.in[1]), second(context.in[0], context.read()));
    }
  }
}

/// p exp(x) below 0.
Tensor elu_second(const Tensor& x, AttributeReader numbers) {
  const Tensor below = lt(x, zeros_like(x));
  return where(below, mul_scalar(exp(minimum(x, zeros_like(x))), numbers.scalar()), zeros_like(x));
}

/// p s (1 - s) with s = sigmoid(p x), below the threshold.
Tensor softplus_second(const Tensor& x, AttributeReader numbers) {
  const double beta = numbers.scalar();
  const double threshold = numbers.scalar();
  const Tensor scaled = mul_scalar(x, beta);
  const Tensor s = sigmoid(scaled);
  const Tensor curved = mul_scalar(mul(s, add_scalar(neg(s), 1)), beta);
  const Tensor linear = gt(scaled, mul_scalar(ones_like(x), threshold));
  return where(linear, zeros_like(x), curved);
}

template <FunctionOp op, Second second = nullptr>
const Op& gradient(const char* schema, const char* about) {
  return register_op({.schema = schema,
                      .infer = infer,
                      .cpu = cpu<op>,
                      .rule = gradient_rule,
                      .backward = gradient_backward<second>,
                      .saves_inputs = saves_all,
                      .about = about});
}

const Op& leaky_relu_gradient = gradient<FunctionOp::leaky_relu_backward>(
    "leaky_relu_backward(x, grad; negative_slope: float)", "The gradient of leaky_relu.");
const Op& elu_gradient = gradient<FunctionOp::elu_backward, elu_second>(
    "elu_backward(x, grad; alpha: float)", "The gradient of elu.");
const Op& softplus_gradient = gradient<FunctionOp::softplus_backward, softplus_second>(
    "softplus_backward(x, grad; beta: float, threshold: float)", "The gradient of softplus.");
const Op& hardtanh_gradient = gradient<FunctionOp::hardtanh_backward>(
    "hardtanh_backward(x, grad; min_val: float, max_val: float)", "The gradient of hardtanh.");

void leaky_relu_backward(const BackwardContext& context, std::span<const Tensor> grads,
                         std::span<Tensor> out) {
  out[0] = call_one(leaky_relu_gradient, {context.in[0], grads[0]}, context.attributes);
}

void elu_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  out[0] = call_one(elu_gradient, {context.in[0], grads[0]}, context.attributes);
}

void softplus_backward(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out) {
  out[0] = call_one(softplus_gradient, {context.in[0], grads[0]}, context.attributes);
}

void hardtanh_backward(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out) {
  out[0] = call_one(hardtanh_gradient, {context.in[0], grads[0]}, context.attributes);
}

/// What was replaced is constant.
void nan_to_num_backward(const BackwardContext& context, std::span<const Tensor> grads,
                         std::span<Tensor> out) {
  static const Op& masked = find_op("masked_fill_backward");
  out[0] = call_one(masked, {grads[0], logical_not(isfinite(context.in[0]))});
}

template <FunctionOp op>
PointwiseForms function(const char* schema,
                        void (*backward)(const BackwardContext&, std::span<const Tensor>,
                                         std::span<Tensor>),
                        const char* about,
                        void (*rule)(const RuleContext&, Strategies&) = rules::pointwise,
                        std::uint64_t saves_inputs = saves_all) {
  return operands::register_pointwise({.schema = schema,
                                       .infer = infer,
                                       .cpu = cpu<op>,
                                       .rule = rule,
                                       .backward = backward,
                                       .saves_inputs = saves_inputs,
                                       .about = about});
}

const PointwiseForms leaky_relu_forms =
    function<FunctionOp::leaky_relu>("leaky_relu(x; negative_slope: float)", leaky_relu_backward,
                                     "x above 0, else x times a slope.");
const PointwiseForms elu_forms = function<FunctionOp::elu>("elu(x; alpha: float)", elu_backward,
                                                           "x above 0, else alpha (exp(x) - 1).");
const PointwiseForms softplus_forms =
    function<FunctionOp::softplus>("softplus(x; beta: float, threshold: float)", softplus_backward,
                                   "log(1 + exp(beta x)) / beta, x itself above a threshold.");
const PointwiseForms hardtanh_forms =
    function<FunctionOp::hardtanh>("hardtanh(x; min_val: float, max_val: float)", hardtanh_backward,
                                   "The nearest number within two.");
const PointwiseForms nan_to_num_forms = function<FunctionOp::nan_to_num>(
    "nan_to_num(x; nan: float, posinf: float, neginf: float)", nan_to_num_backward,
    "x with numbers for NaN and the infinities.");

// lerp, addcmul, addcdiv

/// A weight that is the same for all ranks joins what both ends have.
void lerp_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  pass_partial(context, strategies, 0b011);
}

void lerp_scalar_backward(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out) {
  const double weight = context.read().scalar();
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
  const Tensor scaled = mul_scalar(grads[0], context.read().scalar());
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
  const Tensor scaled = mul_scalar(grads[0], context.read().scalar());
  out[0] = sum_to(grads[0], context.in_shapes[0]);
  if (context.needs(1)) {
    out[1] = sum_to(div(scaled, b), context.in_shapes[1]);
  }
  if (context.needs(2)) {
    const Tensor quotient = div(context.in[1], b);
    out[2] = sum_to(neg(div(mul(scaled, quotient), b)), context.in_shapes[2]);
  }
}

const PointwiseForms lerp_scalar_forms = function<FunctionOp::lerp_scalar>(
    "lerp_scalar(start, end; weight: float)", lerp_scalar_backward,
    "start + weight (end - start), for a number.", rules::pointwise_linear, saves_none);
const PointwiseForms lerp_forms =
    function<FunctionOp::lerp>("lerp(start, end, weight)", lerp_backward,
                               "start + weight (end - start), for a tensor of weights.", lerp_rule);
const PointwiseForms addcmul_forms = function<FunctionOp::addcmul>(
    "addcmul(x, a, b; value: float)", addcmul_backward, "x + value a b.", addcmul_rule, 0b110);
const PointwiseForms addcdiv_forms = function<FunctionOp::addcdiv>(
    "addcdiv(x, a, b; value: float)", addcdiv_backward, "x + value a / b.", lerp_rule, 0b110);

Tensor floating(const Tensor& x) { return is_floating(x.dtype()) ? x : cast(x, DType::f32); }

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

Tensor leaky_relu(const Tensor& x, double negative_slope) {
  operands::given("leaky_relu", "x", x);
  return call_one(leaky_relu_forms.op, {floating(x)}, Attributes().scalar(negative_slope));
}

Tensor elu(const Tensor& x, double alpha) {
  operands::given("elu", "x", x);
  return call_one(elu_forms.op, {floating(x)}, Attributes().scalar(alpha));
}

Tensor hardtanh(const Tensor& x, double low, double high) {
  operands::given("hardtanh", "x", x);
  return call_one(hardtanh_forms.op, {floating(x)}, Attributes().scalar(low).scalar(high));
}

Tensor softplus(const Tensor& x, double beta, double threshold) {
  operands::given("softplus", "x", x);
  return call_one(softplus_forms.op, {floating(x)}, Attributes().scalar(beta).scalar(threshold));
}

Tensor nan_to_num(const Tensor& x, double nan) {
  operands::given("nan_to_num", "x", x);
  double largest = std::numeric_limits<float>::max();
  if (x.dtype() == DType::f64) {
    largest = std::numeric_limits<double>::max();
  } else if (x.dtype() == DType::f16) {
    largest = 65504;
  } else if (x.dtype() == DType::bf16) {
    largest = 0x1.FEp127;
  }
  return nan_to_num(x, nan, largest, -largest);
}

Tensor nan_to_num(const Tensor& x, double nan, double positive, double negative) {
  operands::given("nan_to_num", "x", x);
  if (!is_floating(x.dtype())) {
    return clone(x);
  }
  return call_one(nan_to_num_forms.op, {x},
                  Attributes().scalar(nan).scalar(positive).scalar(negative));
}

Tensor lerp_scalar(const Tensor& start, const Tensor& end, double weight) {
  operands::given("lerp_scalar", "start", start);
  operands::given("lerp_scalar", "end", end);
  const DType type = operands::common_type(start, end);
  return call_one(lerp_scalar_forms.op, {cast(start, type), cast(end, type)},
                  Attributes().scalar(weight));
}

Tensor lerp(const Tensor& start, const Tensor& end, const Tensor& weight) {
  return call_three(lerp_forms.op, start, end, weight);
}

Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return call_three(addcmul_forms.op, x, a, b, Attributes().scalar(value));
}

Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return call_three(addcdiv_forms.op, x, a, b, Attributes().scalar(value));
}

Tensor lerp_scalar_(const Tensor& start, const Tensor& end, double weight) {
  return call_one(lerp_scalar_forms.in_place,
                  {start, operands::in_place_operand("lerp_scalar_", start, end)},
                  Attributes().scalar(weight));
}

Tensor lerp_(const Tensor& start, const Tensor& end, const Tensor& weight) {
  return call_three_in_place(lerp_forms, start, end, weight);
}

Tensor addcmul_(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return call_three_in_place(addcmul_forms, x, a, b, Attributes().scalar(value));
}

Tensor addcdiv_(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return call_three_in_place(addcdiv_forms, x, a, b, Attributes().scalar(value));
}

}  // namespace tessera::ops
