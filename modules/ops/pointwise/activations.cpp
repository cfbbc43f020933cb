// Activations with numbers as arguments: leaky_relu, elu, softplus, hardtanh. Those without are in
// unary.cpp.
module;
#include <span>

#include "pointwise/kernels/functions.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :pointwise_call;

namespace tessera::ops {
namespace {

struct SlopeArgs {
  Dynamic<double> negative_slope;
};
struct AlphaArgs {
  Dynamic<double> alpha;
};
struct SoftplusArgs {
  Dynamic<double> beta;
  Dynamic<double> threshold;
};
struct HardtanhArgs {
  Dynamic<double> min_val;
  Dynamic<double> max_val;
};

using namespace elementwise;
using kernels::FunctionOp;
using operands::PointwiseForms;

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
using Second = Tensor (*)(const Tensor& x, const BackwardContext& context);

template <Second second>
void gradient_backward(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out) {
  if (context.needs(1)) {
    out[1] = call_one(context.op, {context.in[0], grads[0]}, context.attributes);
  }
  if constexpr (second != nullptr) {
    if (context.needs(0)) {
      out[0] = mul(mul(grads[0], context.in[1]), second(context.in[0], context));
    }
  }
}

/// p exp(x) below 0.
Tensor elu_second(const Tensor& x, const BackwardContext& context) {
  const double alpha = context.args<AlphaArgs>().alpha;
  const Tensor below = lt(x, zeros_like(x));
  return where(below, mul_scalar(exp(minimum(x, zeros_like(x))), alpha), zeros_like(x));
}

/// p s (1 - s) with s = sigmoid(p x), below the threshold.
Tensor softplus_second(const Tensor& x, const BackwardContext& context) {
  const auto [beta, threshold] = context.args<SoftplusArgs>();
  const Tensor scaled = mul_scalar(x, beta);
  const Tensor s = sigmoid(scaled);
  const Tensor curved = mul_scalar(mul(s, add_scalar(neg(s), 1)), beta);
  const Tensor linear = gt(scaled, mul_scalar(ones_like(x), threshold));
  return where(linear, zeros_like(x), curved);
}

template <class Args, FunctionOp op, Second second = nullptr>
const Op& gradient(const char* schema, const char* about) {
  return register_op<Args>({.schema = schema,
                            .infer = infer_function,
                            .cpu = function_cpu<op>,
                            .rule = gradient_rule,
                            .backward = gradient_backward<second>,
                            .saves_inputs = saves_all,
                            .about = about});
}

const Op& leaky_relu_gradient = gradient<SlopeArgs, FunctionOp::leaky_relu_backward>(
    "leaky_relu_backward(x, grad)", "The gradient of leaky_relu.");
const Op& elu_gradient = gradient<AlphaArgs, FunctionOp::elu_backward, elu_second>(
    "elu_backward(x, grad)", "The gradient of elu.");
const Op& softplus_gradient =
    gradient<SoftplusArgs, FunctionOp::softplus_backward, softplus_second>(
        "softplus_backward(x, grad)", "The gradient of softplus.");
const Op& hardtanh_gradient = gradient<HardtanhArgs, FunctionOp::hardtanh_backward>(
    "hardtanh_backward(x, grad)", "The gradient of hardtanh.");

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

const PointwiseForms leaky_relu_forms = register_function<SlopeArgs, FunctionOp::leaky_relu>(
    "leaky_relu(x)", leaky_relu_backward, "x above 0, else x times a slope.");
const PointwiseForms elu_forms = register_function<AlphaArgs, FunctionOp::elu>(
    "elu(x)", elu_backward, "x above 0, else alpha (exp(x) - 1).");
const PointwiseForms softplus_forms = register_function<SoftplusArgs, FunctionOp::softplus>(
    "softplus(x)", softplus_backward, "log(1 + exp(beta x)) / beta, x itself above a threshold.");
const PointwiseForms hardtanh_forms = register_function<HardtanhArgs, FunctionOp::hardtanh>(
    "hardtanh(x)", hardtanh_backward, "The nearest number within two.");

Tensor floating_operand(const Tensor& x) {
  return is_floating(x.dtype()) ? x : cast(x, DType::f32);
}

}  // namespace

Tensor leaky_relu(const Tensor& x, double negative_slope) {
  operands::given("leaky_relu", "x", x);
  return call_one(leaky_relu_forms.op, {floating_operand(x)}, SlopeArgs{negative_slope});
}

Tensor elu(const Tensor& x, double alpha) {
  operands::given("elu", "x", x);
  return call_one(elu_forms.op, {floating_operand(x)}, AlphaArgs{alpha});
}

Tensor hardtanh(const Tensor& x, double low, double high) {
  operands::given("hardtanh", "x", x);
  return call_one(hardtanh_forms.op, {floating_operand(x)}, HardtanhArgs{low, high});
}

Tensor softplus(const Tensor& x, double beta, double threshold) {
  operands::given("softplus", "x", x);
  return call_one(softplus_forms.op, {floating_operand(x)}, SoftplusArgs{beta, threshold});
}

}  // namespace tessera::ops
