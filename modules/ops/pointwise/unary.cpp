// Functions of one operand with kernels for vectors: a table of kernels, and the second derivatives
// by operators, so that backward is one fused pass and can itself be differentiated. Other
// functions are in files of their own, by register_unary().
module;
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>

#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :pointwise_call;

namespace tessera::ops {
namespace {

using namespace elementwise;
using Function = kernels::UnaryOp;
using operands::PointwiseForms;

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void apply(Function function, const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  if (w.counts()) {
    return;
  }
  kernels::unary(function, x.dtype(), x.numel(), x.raw_data(), out[0].raw_data());
}

template <Function function>
void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  apply(function, call, out, w);
}

struct GeluArgs {
  bool tanh;
};
struct FunctionArgs {
  Function function;
};

Function gelu_form(GeluArgs args) { return args.tanh ? Function::gelu_tanh : Function::gelu; }

void gelu_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  apply(gelu_form(call.args<GeluArgs>()), call, out, w);
}

std::string gelu_element(const Call& call) {
  return unary_element(gelu_form(call.args<GeluArgs>()));
}

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
    case Function::erf:
      return mul(mul_scalar(x, -4 / std::sqrt(std::numbers::pi)), exp(neg(square(x))));
    case Function::log1p:
      return neg(pow_scalar(add_scalar(x, 1), -2));
    case Function::expm1:
      return exp(x);
    default:
      return {};
  }
}

void gradient_infer(const Call& call, ResultShapes& out) {
  const Function function = call.args<FunctionArgs>().function;
  if (reflect::name_of_enumerator(function).empty()) {
    refuse(call, {.wrong = "the function does not exist",
                  .expected = std::string(reflect::Enumerators<Function>::joined),
                  .got = fmt::format("the number {}", static_cast<int>(function))});
  }
  infer_slope(call, out);
}

void gradient_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  const Tensor grad = contiguous_operand(w, call.in[1]);
  if (w.counts()) {
    return;
  }
  kernels::unary_backward(call.args<FunctionArgs>().function, x.dtype(), x.numel(), x.raw_data(),
                          grad.raw_data(), out[0].raw_data());
}

std::string gradient_element(const Call& call) {
  return slope_element(call.args<FunctionArgs>().function);
}

void gradient_backward(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  if (context.needs(1)) {
    out[1] = call_one(context.op, {x, grads[0]}, context.attributes);
  }
  if (context.needs(0)) {
    const Function function = context.args<FunctionArgs>().function;
    if (const Tensor second = second_derivative(function, x)) {
      out[0] = mul(mul(grads[0], context.in[1]), second);
    }
  }
}

const Op& gradient_op =
    register_op<FunctionArgs>({.schema = "unary_backward(x, grad)",
                               .infer = gradient_infer,
                               .cpu = in_workspace<gradient_cpu>,
                               .workspace = workspace_of_copies<gradient_cpu>,
                               .element = gradient_element,
                               .rule = slope_rule,
                               .backward = gradient_backward,
                               .saves_inputs = saves_all,
                               .about = "The gradient of a unary function: f'(x) grad."});

Tensor gradient(Function function, const Tensor& x, const Tensor& grad) {
  return call_one(gradient_op, {x, grad}, FunctionArgs{function});
}

template <Function function>
void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] = gradient(function, context.in[0], grads[0]);
}

void gelu_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  out[0] = gradient(gelu_form(context.args<GeluArgs>()), context.in[0], grads[0]);
}

void neg_backward(const BackwardContext&, std::span<const Tensor> grads, std::span<Tensor> out) {
  out[0] = neg(grads[0]);
}

template <Function function>
PointwiseForms floating(const char* name, const char* about, bool monotone = false) {
  return operands::register_pointwise({.schema = std::string(name) + "(x)",
                                       .infer = infer_floating_unary,
                                       .cpu = in_workspace<cpu<function>>,
                                       .workspace = workspace_of_copies<cpu<function>>,
                                       .element = unary_element<function>,
                                       .rule = monotone ? monotone_rule : rules::pointwise,
                                       .backward = backward<function>,
                                       .saves_inputs = saves_all,
                                       .about = about});
}

template <Function function>
PointwiseForms any_type(const char* name, const char* about) {
  return operands::register_pointwise({.schema = std::string(name) + "(x)",
                                       .infer = infer,
                                       .cpu = in_workspace<cpu<function>>,
                                       .workspace = workspace_of_copies<cpu<function>>,
                                       .element = unary_element<function>,
                                       .rule = rules::pointwise,
                                       .backward = backward<function>,
                                       .saves_inputs = saves_all,
                                       .about = about});
}

const PointwiseForms neg_forms =
    operands::register_pointwise({.schema = "neg(x)",
                                  .infer = infer,
                                  .cpu = in_workspace<cpu<Function::neg>>,
                                  .workspace = workspace_of_copies<cpu<Function::neg>>,
                                  .element = unary_element<Function::neg>,
                                  .rule = rules::pointwise_linear,
                                  .backward = neg_backward,
                                  .about = "-x."});
const PointwiseForms gelu_forms = operands::register_pointwise<GeluArgs>(
    {.schema = "gelu(x)",
     .infer = infer_floating_unary,
     .cpu = in_workspace<gelu_cpu>,
     .workspace = workspace_of_copies<gelu_cpu>,
     .element = gelu_element,
     .rule = rules::pointwise,
     .backward = gelu_backward,
     .saves_inputs = saves_all,
     .about = "x Phi(x) with the normal distribution function Phi, exact or in its tanh "
              "approximation."});

const PointwiseForms abs_forms =
    any_type<Function::abs>("abs", "The absolute value; its gradient at 0 is 0.");
const PointwiseForms square_forms = any_type<Function::square>("square", "x x.");
const PointwiseForms sign_forms =
    any_type<Function::sign>("sign", "-1, 0 or 1; its gradient is 0.");
const PointwiseForms exp_forms = floating<Function::exp>("exp", "e to the power of x.", true);
const PointwiseForms log_forms = floating<Function::log>("log", "The natural logarithm.");
const PointwiseForms sqrt_forms = floating<Function::sqrt>("sqrt", "The square root.");
const PointwiseForms rsqrt_forms = floating<Function::rsqrt>("rsqrt", "1 / sqrt(x).");
const PointwiseForms reciprocal_forms = floating<Function::reciprocal>("reciprocal", "1 / x.");
const PointwiseForms sin_forms = floating<Function::sin>("sin", "The sine.");
const PointwiseForms cos_forms = floating<Function::cos>("cos", "The cosine.");
const PointwiseForms tanh_forms = floating<Function::tanh>("tanh", "The hyperbolic tangent.", true);
const PointwiseForms sigmoid_forms =
    floating<Function::sigmoid>("sigmoid", "1 / (1 + exp(-x)).", true);
const PointwiseForms relu_forms = floating<Function::relu>("relu", "x if x > 0, else 0.", true);
const PointwiseForms silu_forms = floating<Function::silu>("silu", "x sigmoid(x).");
const PointwiseForms floor_forms =
    floating<Function::floor>("floor", "The largest integer not above x.", true);
const PointwiseForms ceil_forms =
    floating<Function::ceil>("ceil", "The smallest integer not below x.", true);
const PointwiseForms round_forms =
    floating<Function::round>("round", "The nearest integer, ties to even.", true);
const PointwiseForms expm1_forms =
    floating<Function::expm1>("expm1", "exp(x) - 1, accurate near 0.", true);
const PointwiseForms log1p_forms =
    floating<Function::log1p>("log1p", "log(1 + x), accurate near 0.");
const PointwiseForms erf_forms = floating<Function::erf>("erf", "The error function.", true);

}  // namespace

Tensor neg(const Tensor& x) { return call_one(neg_forms.op, {x}); }
Tensor abs(const Tensor& x) { return call_one(abs_forms.op, {x}); }
Tensor square(const Tensor& x) { return call_one(square_forms.op, {x}); }
Tensor sign(const Tensor& x) { return call_one(sign_forms.op, {x}); }
Tensor floor(const Tensor& x) { return call_rounding(floor_forms, x); }
Tensor ceil(const Tensor& x) { return call_rounding(ceil_forms, x); }
Tensor round(const Tensor& x) { return call_rounding(round_forms, x); }
Tensor exp(const Tensor& x) { return call_floating(exp_forms, x); }
Tensor expm1(const Tensor& x) { return call_floating(expm1_forms, x); }
Tensor log(const Tensor& x) { return call_floating(log_forms, x); }
Tensor log1p(const Tensor& x) { return call_floating(log1p_forms, x); }
Tensor sqrt(const Tensor& x) { return call_floating(sqrt_forms, x); }
Tensor rsqrt(const Tensor& x) { return call_floating(rsqrt_forms, x); }
Tensor reciprocal(const Tensor& x) { return call_floating(reciprocal_forms, x); }
Tensor sin(const Tensor& x) { return call_floating(sin_forms, x); }
Tensor cos(const Tensor& x) { return call_floating(cos_forms, x); }
Tensor tanh(const Tensor& x) { return call_floating(tanh_forms, x); }
Tensor erf(const Tensor& x) { return call_floating(erf_forms, x); }
Tensor sigmoid(const Tensor& x) { return call_floating(sigmoid_forms, x); }
Tensor relu(const Tensor& x) { return call_floating(relu_forms, x); }
Tensor silu(const Tensor& x) { return call_floating(silu_forms, x); }

Tensor gelu(const Tensor& x, bool tanh_form) {
  return call_one(gelu_forms.op, {x}, GeluArgs{tanh_form});
}

Tensor neg_(const Tensor& x) { return call_one(neg_forms.in_place, {x}); }
Tensor abs_(const Tensor& x) { return call_one(abs_forms.in_place, {x}); }
Tensor square_(const Tensor& x) { return call_one(square_forms.in_place, {x}); }
Tensor exp_(const Tensor& x) { return call_one(exp_forms.in_place, {x}); }
Tensor log_(const Tensor& x) { return call_one(log_forms.in_place, {x}); }
Tensor sqrt_(const Tensor& x) { return call_one(sqrt_forms.in_place, {x}); }
Tensor rsqrt_(const Tensor& x) { return call_one(rsqrt_forms.in_place, {x}); }
Tensor reciprocal_(const Tensor& x) { return call_one(reciprocal_forms.in_place, {x}); }
Tensor relu_(const Tensor& x) { return call_one(relu_forms.in_place, {x}); }
Tensor sigmoid_(const Tensor& x) { return call_one(sigmoid_forms.in_place, {x}); }
Tensor tanh_(const Tensor& x) { return call_one(tanh_forms.in_place, {x}); }

}  // namespace tessera::ops
