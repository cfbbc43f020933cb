// What elementwise operators share: functions of one operand that an operator defines itself, and
// the calls of the kernels of two operands and of the functions with numbers.
module;
#include "pointwise/kernels/functions.hpp"
#include "pointwise/kernels/map.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops:pointwise_call;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :operands;
import :pointwise;
import :rules;

namespace tessera::ops::elementwise {

void apply_binary(kernels::BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y);

template <kernels::BinaryOp op>
inline void binary_cpu(const Call& call, std::span<Tensor> out) {
  apply_binary(op, call.in[0], call.in[1], out[0]);
}

/// One floating type, all operands broadcast together.
void infer_function(const Call& call, ResultShapes& out);
void apply_function(kernels::FunctionOp op, const Call& call, Tensor& y);

template <kernels::FunctionOp op>
inline void function_cpu(const Call& call, std::span<Tensor> out) {
  apply_function(op, call, out[0]);
}

// Op::element of functions in kernels/elements.hpp.
std::string unary_element(kernels::UnaryOp op);
std::string slope_element(kernels::UnaryOp op);
std::string function_element(kernels::FunctionOp op, std::size_t operands, std::size_t numbers);
template <kernels::UnaryOp op>
inline std::string unary_element(const Call&) {
  return unary_element(op);
}
template <kernels::FunctionOp op>
inline std::string function_element(const Call& call) {
  return function_element(op, call.in.size(), call.attributes.dynamic().size());
}

/// Registers a function, all of whose arguments are dynamic numbers, with its in-place and out
/// variants. Args: their aggregate; void where there are none.
template <class Args, kernels::FunctionOp op>
inline operands::PointwiseForms register_function(
    const char* schema,
    void (*backward)(const BackwardContext&, std::span<const Tensor>, std::span<Tensor>),
    const char* about, void (*rule)(const RuleContext&, Strategies&) = rules::pointwise,
    std::uint64_t saves_inputs = saves_all) {
  return operands::register_pointwise<Args>({.schema = schema,
                                             .infer = infer_function,
                                             .cpu = function_cpu<op>,
                                             .element = function_element<op>,
                                             .rule = rule,
                                             .backward = backward,
                                             .saves_inputs = saves_inputs,
                                             .about = about});
}

/// An operator of one operand that keeps its shape; floating types only.
void infer_floating_unary(const Call& call, ResultShapes& out);
/// Functions that never decrease: the largest element stays the largest.
void monotone_rule(const RuleContext& context, Strategies& strategies);
/// The gradient "name_backward(x, grad)" of a function of x: linear in grad.
void infer_slope(const Call& call, ResultShapes& out);
void slope_rule(const RuleContext& context, Strategies& strategies);
/// Calls the operator on x; integers and bool are cast to f32 first.
Tensor call_floating(const operands::PointwiseForms& forms, const Tensor& x);
/// The same for operators that round: integers and bool are copied, as they are whole already.
Tensor call_rounding(const operands::PointwiseForms& forms, const Tensor& x);

/// The operators of one function of one operand: "name" with its in-place and out variants, and
/// its gradient "name_backward". F defines the function for one element:
///
///     template <class T> static T value(T x);     // T: float, or double for f64
///     template <class T> static T slope(T x);     // the derivative
///     static Tensor second(const Tensor& x);      // optional: the second derivative, by
///     operators;
///                                                 // without it, the second derivative is 0
template <class F>
struct Unary {
  static void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
    const Tensor x = contiguous_operand(w, call.in[0]);
    if (w.counts()) {
      return;
    }
    kernels::map<1>(x.dtype(), x.numel(), {x.raw_data()}, out[0].raw_data(),
                    [](auto element) { return F::value(element); });
  }

  static void slope_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
    const Tensor x = contiguous_operand(w, call.in[0]);
    const Tensor grad = contiguous_operand(w, call.in[1]);
    if (w.counts()) {
      return;
    }
    kernels::map<2>(x.dtype(), x.numel(), {x.raw_data(), grad.raw_data()}, out[0].raw_data(),
                    [](auto element, auto g) { return F::slope(element) * g; });
  }

  static void slope_backward(const BackwardContext& context, std::span<const Tensor> grads,
                             std::span<Tensor> out) {
    if (context.needs(1)) {
      out[1] = call_one(*slope, {context.in[0], grads[0]});
    }
    if constexpr (requires { F::second(context.in[0]); }) {
      if (context.needs(0)) {
        out[0] = mul(mul(grads[0], context.in[1]), F::second(context.in[0]));
      }
    }
  }

  static void backward(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out) {
    out[0] = call_one(*slope, {context.in[0], grads[0]});
  }

  static inline const Op* slope = nullptr;
};

template <class F>
inline operands::PointwiseForms register_unary(const std::string& name, const char* about,
                                               void (*rule)(const RuleContext&,
                                                            Strategies&) = rules::pointwise) {
  Unary<F>::slope = &register_op({.schema = name + "_backward(x, grad)",
                                  .infer = infer_slope,
                                  .cpu = in_workspace<Unary<F>::slope_cpu>,
                                  .workspace = workspace_of_copies<Unary<F>::slope_cpu>,
                                  .rule = slope_rule,
                                  .backward = Unary<F>::slope_backward,
                                  .saves_inputs = saves_all,
                                  .about = "The gradient of " + name + "."});
  return operands::register_pointwise({.schema = name + "(x)",
                                       .infer = infer_floating_unary,
                                       .cpu = in_workspace<Unary<F>::cpu>,
                                       .workspace = workspace_of_copies<Unary<F>::cpu>,
                                       .rule = rule,
                                       .backward = Unary<F>::backward,
                                       .saves_inputs = saves_all,
                                       .about = about});
}

}  // namespace tessera::ops::elementwise
