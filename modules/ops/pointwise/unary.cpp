// Functions of one operand: a table of kernels, and the second derivatives by operators, so that
// backward is one fused pass and can itself be differentiated.
module;
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>

#include "pointwise/kernels/pointwise.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using Function = kernels::UnaryOp;
using operands::PointwiseForms;

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void infer_floating(const Call& call, ResultShapes& out) {
  operands::check_floating(call.op.name, call.in[0]);
  infer(call, out);
}

void apply(Function function, const Call& call, std::span<Tensor> out) {
  const Tensor x = operands::contiguous(call.in[0]);
  kernels::unary(function, x.dtype(), x.numel(), x.raw_data(), out[0].raw_data());
}

template <Function function>
void cpu(const Call& call, std::span<Tensor> out) {
  apply(function, call, out);
}

struct GeluArgs {
  bool tanh;
};
struct FunctionArgs {
  Function function;
};

Function gelu_form(GeluArgs args) { return args.tanh ? Function::gelu_tanh : Function::gelu; }

void gelu_cpu(const Call& call, std::span<Tensor> out) {
  apply(gelu_form(call.args<GeluArgs>()), call, out);
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
    case Function::exp2:
      return mul_scalar(exp2(x), std::numbers::ln2 * std::numbers::ln2);
    case Function::log2:
      return mul_scalar(pow_scalar(x, -2), -std::numbers::log2e);
    case Function::log10:
      return mul_scalar(pow_scalar(x, -2), -std::numbers::log10e);
    case Function::tan: {
      const Tensor t = tan(x);
      return mul(mul_scalar(t, 2), line(1, 1, square(t)));
    }
    case Function::asin:
      return mul(x, pow_scalar(line(1, -1, square(x)), -1.5));
    case Function::acos:
      return neg(mul(x, pow_scalar(line(1, -1, square(x)), -1.5)));
    case Function::atan:
      return mul(mul_scalar(x, -2), pow_scalar(line(1, 1, square(x)), -2));
    case Function::sinh:
      return sinh(x);
    case Function::cosh:
      return cosh(x);
    case Function::log_sigmoid: {
      const Tensor s = sigmoid(x);
      return neg(mul(s, line(1, -1, s)));
    }
    case Function::mish: {  // (1 - t^2) s (2 + x (1 - s) - 2 x t s), t = tanh(log(1 + exp x))
      const Tensor s = sigmoid(x);
      const Tensor t = tanh(softplus(x));
      const Tensor inner = sub(line(1, -1, s), mul_scalar(mul(t, s), 2));
      return mul(mul(line(1, -1, square(t)), s), add_scalar(mul(x, inner), 2));
    }
    case Function::hardswish:
      return mul_scalar(cast(lt(abs(x), mul_scalar(ones_like(x), 3)), x.dtype()), 1.0 / 3);
    default:
      return {};
  }
}

void gradient_infer(const Call& call, ResultShapes& out) {
  check_one_type(call);
  check_shape(call, 1, call.in[0].shape());
  infer_floating(call, out);
}

void gradient_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = operands::contiguous(call.in[0]);
  const Tensor grad = operands::contiguous(call.in[1]);
  kernels::unary_backward(call.args<FunctionArgs>().function, x.dtype(), x.numel(), x.raw_data(),
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
    const auto function = context.args<FunctionArgs>().function;
    if (const Tensor second = second_derivative(function, x)) {
      out[0] = mul(mul(grads[0], context.in[1]), second);
    }
  }
}

const Op& gradient_op =
    register_op<FunctionArgs>({.schema = "unary_backward(x, grad)",
                               .infer = gradient_infer,
                               .cpu = gradient_cpu,
                               .rule = gradient_rule,
                               .backward = gradient_backward,
                               .saves_inputs = saves_all,
                               .about = "f'(x) grad, for a function of one operand."});

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

/// Functions that keep order everywhere: the largest stays the largest. log and sqrt are not among
/// them: they make NaN of a maximum's lesser terms below 0.
void monotone_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
    strategies.push_back(rules::strategy({Partial(op)}, {Partial(op)}));
  }
}

template <Function function>
PointwiseForms floating(const char* name, const char* about, bool monotone = false) {
  return operands::register_pointwise({.schema = std::string(name) + "(x)",
                                       .infer = infer_floating,
                                       .cpu = cpu<function>,
                                       .rule = monotone ? monotone_rule : rules::pointwise,
                                       .backward = backward<function>,
                                       .saves_inputs = saves_all,
                                       .about = about});
}

template <Function function>
PointwiseForms any_type(const char* name, const char* about) {
  return operands::register_pointwise({.schema = std::string(name) + "(x)",
                                       .infer = infer,
                                       .cpu = cpu<function>,
                                       .rule = rules::pointwise,
                                       .backward = backward<function>,
                                       .saves_inputs = saves_all,
                                       .about = about});
}

const PointwiseForms neg_forms = operands::register_pointwise({.schema = "neg(x)",
                                                               .infer = infer,
                                                               .cpu = cpu<Function::neg>,
                                                               .rule = rules::pointwise_linear,
                                                               .backward = neg_backward,
                                                               .about = "-x."});
const PointwiseForms gelu_forms = operands::register_pointwise<GeluArgs>(
    {.schema = "gelu(x)",
     .infer = infer_floating,
     .cpu = gelu_cpu,
     .rule = rules::pointwise,
     .backward = gelu_backward,
     .saves_inputs = saves_all,
     .about = "x times the normal distribution's mass below x, exact "
              "or by its tanh form."});

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
const PointwiseForms relu_forms = floating<Function::relu>("relu", "x above 0, else 0.", true);
const PointwiseForms silu_forms = floating<Function::silu>("silu", "x sigmoid(x).");
const PointwiseForms floor_forms =
    floating<Function::floor>("floor", "The largest whole number not above x.", true);
const PointwiseForms ceil_forms =
    floating<Function::ceil>("ceil", "The smallest whole number not below x.", true);
const PointwiseForms round_forms =
    floating<Function::round>("round", "The nearest whole number, halves to the even one.", true);
const PointwiseForms trunc_forms = floating<Function::trunc>("trunc", "x cut towards 0.", true);
const PointwiseForms frac_forms = floating<Function::frac>("frac", "What trunc leaves of x.");
const PointwiseForms exp2_forms = floating<Function::exp2>("exp2", "2 to the power of x.", true);
const PointwiseForms expm1_forms =
    floating<Function::expm1>("expm1", "exp(x) - 1, exact near 0.", true);
const PointwiseForms log2_forms = floating<Function::log2>("log2", "The logarithm to base 2.");
const PointwiseForms log10_forms = floating<Function::log10>("log10", "The logarithm to base 10.");
const PointwiseForms log1p_forms = floating<Function::log1p>("log1p", "log(1 + x), exact near 0.");
const PointwiseForms tan_forms = floating<Function::tan>("tan", "The tangent.");
const PointwiseForms asin_forms = floating<Function::asin>("asin", "The angle whose sine is x.");
const PointwiseForms acos_forms = floating<Function::acos>("acos", "The angle whose cosine is x.");
const PointwiseForms atan_forms =
    floating<Function::atan>("atan", "The angle whose tangent is x.", true);
const PointwiseForms sinh_forms = floating<Function::sinh>("sinh", "The hyperbolic sine.", true);
const PointwiseForms cosh_forms = floating<Function::cosh>("cosh", "The hyperbolic cosine.");
const PointwiseForms erf_forms = floating<Function::erf>("erf", "The error function.", true);
const PointwiseForms log_sigmoid_forms =
    floating<Function::log_sigmoid>("log_sigmoid", "log(sigmoid(x)).", true);
const PointwiseForms mish_forms = floating<Function::mish>("mish", "x tanh(log(1 + exp(x))).");
const PointwiseForms hardswish_forms =
    floating<Function::hardswish>("hardswish", "x times hardsigmoid(x).");
const PointwiseForms hardsigmoid_forms =
    floating<Function::hardsigmoid>("hardsigmoid", "x / 6 + 1 / 2 within 0 and 1.", true);

/// Integers meet functions of floating results in f32.
Tensor call_floating(const PointwiseForms& forms, const Tensor& x) {
  operands::given(forms.op.name, "x", x);
  return call_one(forms.op, {is_floating(x.dtype()) ? x : cast(x, DType::f32)});
}

/// Integers are whole already.
Tensor call_rounding(const PointwiseForms& forms, const Tensor& x) {
  operands::given(forms.op.name, "x", x);
  return is_floating(x.dtype()) ? call_one(forms.op, {x}) : clone(x);
}

}  // namespace

Tensor neg(const Tensor& x) { return call_one(neg_forms.op, {x}); }
Tensor abs(const Tensor& x) { return call_one(abs_forms.op, {x}); }
Tensor square(const Tensor& x) { return call_one(square_forms.op, {x}); }
Tensor sign(const Tensor& x) { return call_one(sign_forms.op, {x}); }
Tensor floor(const Tensor& x) { return call_rounding(floor_forms, x); }
Tensor ceil(const Tensor& x) { return call_rounding(ceil_forms, x); }
Tensor round(const Tensor& x) { return call_rounding(round_forms, x); }
Tensor trunc(const Tensor& x) { return call_rounding(trunc_forms, x); }
Tensor frac(const Tensor& x) { return call_floating(frac_forms, x); }
Tensor exp(const Tensor& x) { return call_floating(exp_forms, x); }
Tensor exp2(const Tensor& x) { return call_floating(exp2_forms, x); }
Tensor expm1(const Tensor& x) { return call_floating(expm1_forms, x); }
Tensor log(const Tensor& x) { return call_floating(log_forms, x); }
Tensor log2(const Tensor& x) { return call_floating(log2_forms, x); }
Tensor log10(const Tensor& x) { return call_floating(log10_forms, x); }
Tensor log1p(const Tensor& x) { return call_floating(log1p_forms, x); }
Tensor sqrt(const Tensor& x) { return call_floating(sqrt_forms, x); }
Tensor rsqrt(const Tensor& x) { return call_floating(rsqrt_forms, x); }
Tensor reciprocal(const Tensor& x) { return call_floating(reciprocal_forms, x); }
Tensor sin(const Tensor& x) { return call_floating(sin_forms, x); }
Tensor cos(const Tensor& x) { return call_floating(cos_forms, x); }
Tensor tan(const Tensor& x) { return call_floating(tan_forms, x); }
Tensor asin(const Tensor& x) { return call_floating(asin_forms, x); }
Tensor acos(const Tensor& x) { return call_floating(acos_forms, x); }
Tensor atan(const Tensor& x) { return call_floating(atan_forms, x); }
Tensor sinh(const Tensor& x) { return call_floating(sinh_forms, x); }
Tensor cosh(const Tensor& x) { return call_floating(cosh_forms, x); }
Tensor tanh(const Tensor& x) { return call_floating(tanh_forms, x); }
Tensor erf(const Tensor& x) { return call_floating(erf_forms, x); }
Tensor sigmoid(const Tensor& x) { return call_floating(sigmoid_forms, x); }
Tensor log_sigmoid(const Tensor& x) { return call_floating(log_sigmoid_forms, x); }
Tensor relu(const Tensor& x) { return call_floating(relu_forms, x); }
Tensor silu(const Tensor& x) { return call_floating(silu_forms, x); }
Tensor mish(const Tensor& x) { return call_floating(mish_forms, x); }
Tensor hardswish(const Tensor& x) { return call_floating(hardswish_forms, x); }
Tensor hardsigmoid(const Tensor& x) { return call_floating(hardsigmoid_forms, x); }

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
