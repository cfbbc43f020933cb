// Activations: leaky_relu, elu, softplus, hardtanh, log_sigmoid, mish, hardswish, hardsigmoid.
// Those with kernels for vectors (relu, silu, gelu, sigmoid, tanh) are in unary.cpp.
module;
#include <cmath>
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
using operands::AlphaArgs;
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
                            .element = function_element<op>,
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
    "leaky_relu(x)", leaky_relu_backward, "x if x > 0, else negative_slope x.");
const PointwiseForms elu_forms = register_function<AlphaArgs, FunctionOp::elu>(
    "elu(x)", elu_backward, "x if x > 0, else alpha (exp(x) - 1).");
const PointwiseForms softplus_forms = register_function<SoftplusArgs, FunctionOp::softplus>(
    "softplus(x)", softplus_backward, "log(1 + exp(beta x)) / beta; x if beta x > threshold.");
const PointwiseForms hardtanh_forms = register_function<HardtanhArgs, FunctionOp::hardtanh>(
    "hardtanh(x)", hardtanh_backward, "x limited to [min_val, max_val].");

// Functions without numbers.

/// log(1 + exp(x)), for any x.
template <class T>
T softplus_of(T x) {
  return (x > 0 ? x : T{0}) + std::log1p(std::exp(-std::abs(x)));
}

template <class T>
T within_0_and_6(T x) {
  return x < 0 ? T{0} : (x > 6 ? T{6} : x);
}

struct LogSigmoid {
  template <class T>
  static T value(T x) {
    return -softplus_of(-x);
  }
  template <class T>
  static T slope(T x) {
    return 1 / (1 + std::exp(x));
  }
  static Tensor second(const Tensor& x) {
    const Tensor s = sigmoid(x);
    return mul(s, add_scalar(s, -1));
  }
};

struct Mish {
  template <class T>
  static T value(T x) {
    return x * std::tanh(softplus_of(x));
  }
  template <class T>
  static T slope(T x) {
    const T t = std::tanh(softplus_of(x));
    return t + x * (1 - t * t) / (1 + std::exp(-x));
  }
  /// (1 - t^2) s (2 + x (1 - s) - 2 x t s) with t = tanh(log(1 + exp x)), s = sigmoid(x)
  static Tensor second(const Tensor& x) {
    const Tensor s = sigmoid(x);
    const Tensor t = tanh(softplus(x));
    const Tensor inner = sub(add_scalar(neg(s), 1), mul_scalar(mul(t, s), 2));
    return mul(mul(add_scalar(neg(square(t)), 1), s), add_scalar(mul(x, inner), 2));
  }
};

struct Hardswish {
  template <class T>
  static T value(T x) {
    return x * within_0_and_6(x + 3) / 6;
  }
  template <class T>
  static T slope(T x) {
    return x <= -3 ? T{0} : (x < 3 ? x / 3 + T{1} / 2 : T{1});
  }
  static Tensor second(const Tensor& x) {
    return mul_scalar(cast(lt(abs(x), mul_scalar(ones_like(x), 3)), x.dtype()), 1.0 / 3);
  }
};

struct Hardsigmoid {
  template <class T>
  static T value(T x) {
    return within_0_and_6(x + 3) / 6;
  }
  template <class T>
  static T slope(T x) {
    return x > -3 && x < 3 ? T{1} / 6 : T{0};
  }
};

const PointwiseForms log_sigmoid_forms =
    register_unary<LogSigmoid>("log_sigmoid", "log(sigmoid(x)).", monotone_rule);
const PointwiseForms mish_forms = register_unary<Mish>("mish", "x tanh(log(1 + exp(x))).");
const PointwiseForms hardswish_forms =
    register_unary<Hardswish>("hardswish", "x times hardsigmoid(x).");
const PointwiseForms hardsigmoid_forms =
    register_unary<Hardsigmoid>("hardsigmoid", "x / 6 + 1 / 2, limited to [0, 1].", monotone_rule);

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

Tensor log_sigmoid(const Tensor& x) { return call_floating(log_sigmoid_forms, x); }
Tensor mish(const Tensor& x) { return call_floating(mish_forms, x); }
Tensor hardswish(const Tensor& x) { return call_floating(hardswish_forms, x); }
Tensor hardsigmoid(const Tensor& x) { return call_floating(hardsigmoid_forms, x); }

}  // namespace tessera::ops
