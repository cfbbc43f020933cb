// Functions of one operand: a table of kernels, and the second derivatives by operators, so that
// backward is one fused pass and can itself be differentiated.
module;
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>

#include "kernels/pointwise.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::ops {
namespace {

using Function = kernels::UnaryOp;

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void infer_floating(const Call& call, ResultShapes& out) {
  operands::check_floating(call.op.name, call.in[0]);
  infer(call, out);
}

void apply(Function function, const Call& call, std::span<Tensor> out) {
  const Tensor x = operands::contiguous(call.in[0]);
  kernels::unary(function, static_cast<kernels::DType>(x.dtype()), x.numel(), x.raw_data(),
                 out[0].raw_data());
}

template <Function function>
void cpu(const Call& call, std::span<Tensor> out) {
  apply(function, call, out);
}

Function gelu_form(AttributeReader read) {
  return read.flag() ? Function::gelu_tanh : Function::gelu;
}

void gelu_cpu(const Call& call, std::span<Tensor> out) { apply(gelu_form(call.read()), call, out); }

/// a + b x
Tensor line(double a, double b, const Tensor& x) { return add_scalar(mul_scalar(x, b), a); }

/// f''(x) for gelu's tanh form: f = x (1 + tanh u) / 2 with u = c (x + a x^3).
Tensor gelu_tanh_second(const Tensor& x) {
  const double c = std::sqrt(2 / std::numbers::pi);
  constexpr double a = 0.044715;
  const Tensor u1 = line(c, 3 * a * c, square(x));  // u'
  const Tensor t = tanh(mul_scalar(mul(x, line(1, a, square(x))), c));
  const Tensor s = line(1, -1, square(t));  // tanh'(u)
  const Tensor inner = sub(mul_scalar(x, 6 * a * c), mul_scalar(mul(t, square(u1)), 2));
  return mul(s, add(u1, mul_scalar(mul(x, inner), 0.5)));
}

/// f''(x); undefined where it is 0 everywhere.
Tensor second_derivative(Function function, const Tensor& x) {
  switch (function) {
    case Function::exp:
      return exp(x);
    case Function::log:
      return neg(pow_scalar(x, -2));
    case Function::sqrt:
      return mul_scalar(pow_scalar(x, -1.5), -0.25);
    case Function::rsqrt:
      return mul_scalar(pow_scalar(x, -2.5), 0.75);
    case Function::square:
      return mul_scalar(ones_like(x), 2);
    case Function::reciprocal:
      return mul_scalar(pow_scalar(x, -3), 2);
    case Function::sin:
      return neg(sin(x));
    case Function::cos:
      return neg(cos(x));
    case Function::tanh: {
      const Tensor t = tanh(x);
      return mul(mul_scalar(t, -2), line(1, -1, square(t)));
    }
    case Function::sigmoid: {
      const Tensor s = sigmoid(x);
      return mul(mul(s, line(1, -1, s)), line(1, -2, s));
    }
    case Function::silu: {
      const Tensor s = sigmoid(x);
      return mul(mul(s, line(1, -1, s)), add_scalar(mul(x, line(1, -2, s)), 2));
    }
    case Function::gelu: {  // phi(x) (2 - x^2)
      const Tensor density = exp(mul_scalar(square(x), -0.5));
      return mul(mul_scalar(density, std::sqrt(0.5 / std::numbers::pi)), line(2, -1, square(x)));
    }
    case Function::gelu_tanh:
      return gelu_tanh_second(x);
    default:
      return {};
  }
}

void gradient_infer(const Call& call, ResultShapes& out) {
  operands::check_same_type(call.op.name, call.in[0], call.in[1]);
  operands::check_broadcasts_to(call.op.name, call.in[1].shape(), call.in[0].shape());
  infer_floating(call, out);
}

void gradient_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = operands::contiguous(call.in[0]);
  const Tensor grad = operands::contiguous(call.in[1]);
  kernels::unary_backward(static_cast<Function>(call.read().integer()),
                          static_cast<kernels::DType>(x.dtype()), x.numel(), x.raw_data(),
                          grad.raw_data(), out[0].raw_data());
}

/// Linear in grad.
void gradient_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
    strategies.push_back(rules::strategy({Replicate(), Partial(op)}, {Partial(op)}));
  }
}

void gradient_backward(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  if (context.needs(1)) {
    out[1] = call_one(context.op, {x, grads[0]}, context.attributes);
  }
  if (context.needs(0)) {
    const auto function = static_cast<Function>(context.read().integer());
    if (const Tensor second = second_derivative(function, x)) {
      out[0] = mul(mul(grads[0], context.in[1]), second);
    }
  }
}

const Op& gradient_op = register_op({.schema = "unary_backward(x, grad; function: int)",
                                     .infer = gradient_infer,
                                     .cpu = gradient_cpu,
                                     .rule = gradient_rule,
                                     .backward = gradient_backward,
                                     .saves_inputs = saves_all,
                                     .about = "f'(x) grad, for a function of one operand."});

Tensor gradient(Function function, const Tensor& x, const Tensor& grad) {
  return call_one(gradient_op, {x, grad}, Attributes().add(static_cast<std::int64_t>(function)));
}

template <Function function>
void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] = gradient(function, context.in[0], grads[0]);
}

void gelu_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  out[0] = gradient(gelu_form(context.read()), context.in[0], grads[0]);
}

void neg_backward(const BackwardContext&, std::span<const Tensor> grads, std::span<Tensor> out) {
  out[0] = neg(grads[0]);
}

/// Functions that keep order everywhere: the largest stays the largest. log and sqrt are not among
/// them: they make NaN of a maximum's lesser terms below 0.
void monotone_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
    strategies.push_back(rules::strategy({Partial(op)}, {Partial(op)}));
  }
}

template <Function function>
const Op& floating(const char* name, const char* about, bool monotone = false) {
  return register_op({.schema = std::string(name) + "(x)",
                      .infer = infer_floating,
                      .cpu = cpu<function>,
                      .rule = monotone ? monotone_rule : rules::pointwise,
                      .backward = backward<function>,
                      .saves_inputs = saves_all,
                      .about = about});
}

template <Function function>
const Op& any_type(const char* name, const char* about) {
  return register_op({.schema = std::string(name) + "(x)",
                      .infer = infer,
                      .cpu = cpu<function>,
                      .rule = rules::pointwise,
                      .backward = backward<function>,
                      .saves_inputs = saves_all,
                      .about = about});
}

const Op& neg_op = register_op({.schema = "neg(x)",
                                .infer = infer,
                                .cpu = cpu<Function::neg>,
                                .rule = rules::pointwise_linear,
                                .backward = neg_backward,
                                .about = "-x."});
const Op& gelu_op = register_op({.schema = "gelu(x; tanh: bool)",
                                 .infer = infer_floating,
                                 .cpu = gelu_cpu,
                                 .rule = rules::pointwise,
                                 .backward = gelu_backward,
                                 .saves_inputs = saves_all,
                                 .about = "x times the normal distribution's mass below x, exact "
                                          "or by its tanh form."});

const Op& abs_op = any_type<Function::abs>("abs", "The absolute value; its gradient at 0 is 0.");
const Op& square_op = any_type<Function::square>("square", "x x.");
const Op& sign_op = any_type<Function::sign>("sign", "-1, 0 or 1; its gradient is 0.");
const Op& exp_op = floating<Function::exp>("exp", "e to the power of x.", true);
const Op& log_op = floating<Function::log>("log", "The natural logarithm.");
const Op& sqrt_op = floating<Function::sqrt>("sqrt", "The square root.");
const Op& rsqrt_op = floating<Function::rsqrt>("rsqrt", "1 / sqrt(x).");
const Op& reciprocal_op = floating<Function::reciprocal>("reciprocal", "1 / x.");
const Op& sin_op = floating<Function::sin>("sin", "The sine.");
const Op& cos_op = floating<Function::cos>("cos", "The cosine.");
const Op& tanh_op = floating<Function::tanh>("tanh", "The hyperbolic tangent.", true);
const Op& sigmoid_op = floating<Function::sigmoid>("sigmoid", "1 / (1 + exp(-x)).", true);
const Op& relu_op = floating<Function::relu>("relu", "x above 0, else 0.", true);
const Op& silu_op = floating<Function::silu>("silu", "x sigmoid(x).");

/// Integers meet functions of floating results in f32.
Tensor call_floating(const Op& op, const Tensor& x) {
  return is_floating(x.dtype()) ? call_one(op, {x}) : call_one(op, {cast(x, DType::f32)});
}

}  // namespace

Tensor neg(const Tensor& x) { return call_one(neg_op, {x}); }
Tensor abs(const Tensor& x) { return call_one(abs_op, {x}); }
Tensor square(const Tensor& x) { return call_one(square_op, {x}); }
Tensor sign(const Tensor& x) { return call_one(sign_op, {x}); }
Tensor exp(const Tensor& x) { return call_floating(exp_op, x); }
Tensor log(const Tensor& x) { return call_floating(log_op, x); }
Tensor sqrt(const Tensor& x) { return call_floating(sqrt_op, x); }
Tensor rsqrt(const Tensor& x) { return call_floating(rsqrt_op, x); }
Tensor reciprocal(const Tensor& x) { return call_floating(reciprocal_op, x); }
Tensor sin(const Tensor& x) { return call_floating(sin_op, x); }
Tensor cos(const Tensor& x) { return call_floating(cos_op, x); }
Tensor tanh(const Tensor& x) { return call_floating(tanh_op, x); }
Tensor sigmoid(const Tensor& x) { return call_floating(sigmoid_op, x); }
Tensor relu(const Tensor& x) { return call_floating(relu_op, x); }
Tensor silu(const Tensor& x) { return call_floating(silu_op, x); }

Tensor gelu(const Tensor& x, bool tanh_form) {
  return call_one(gelu_op, {x}, Attributes().add(tanh_form));
}

}  // namespace tessera::ops
