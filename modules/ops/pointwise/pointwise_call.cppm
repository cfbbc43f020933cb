// Shared parts of elementwise operators: the kernels and the gradients of the functions of
// elements, and tensors in the formulas of second derivatives.
module;
#include <tessera/math.hpp>

#include "pointwise/kernels/apply.hpp"
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

/// y = f(the call's operands; numbers). The operands broadcast to y, which is contiguous.
void apply_function(const kernels::FunctionKernels& function, const Call& call,
                    std::span<const double> numbers, const Tensor& y);
/// Applies the function to operands of y's shape; those that are not contiguous are copied into the
/// workspace.
void apply_to_copies(const kernels::FunctionKernels& function, const Call& call,
                     std::span<const double> numbers, const Tensor& y, Workspace& w);

/// An operator's dynamic arguments, all of which are numbers.
template <std::size_t count>
inline std::array<double, count> numbers_of(const Attributes& attributes) {
  std::array<double, count> numbers{};
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = ArgumentType<double>::from_word(attributes.dynamic()[i]);
  }
  return numbers;
}

/// Op::cpu of a function with so many operands, which broadcast, and dynamic arguments.
template <class F, std::size_t operands, std::size_t numbers = 0>
inline void function_cpu(const Call& call, std::span<Tensor> out) {
  apply_function(kernels::kernels_of<F, operands, numbers>(), call,
                 numbers_of<numbers>(call.attributes), out[0]);
}
/// Applies F to operands of one shape, in a workspace.
template <class F, std::size_t operands, std::size_t numbers = 0>
inline void copied_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  apply_to_copies(kernels::kernels_of<F, operands, numbers>(), call,
                  numbers_of<numbers>(call.attributes), out[0], w);
}
/// Op::element of a function.
template <class F>
inline Element element(const Call&) {
  return element_of<F>();
}

/// A tensor in a function's second derivative: what math.hpp has is calls of operators.
class Formula {
 public:
  explicit Formula(Tensor x) : x_(std::move(x)) {}
  inline const Tensor& tensor() const { return x_; }

  friend inline Formula operator-(const Formula& a) { return Formula(neg(a.x_)); }
  friend inline Formula operator+(const Formula& a, const Formula& b) {
    return Formula(add(a.x_, b.x_));
  }
  friend inline Formula operator-(const Formula& a, const Formula& b) {
    return Formula(sub(a.x_, b.x_));
  }
  friend inline Formula operator*(const Formula& a, const Formula& b) {
    return Formula(mul(a.x_, b.x_));
  }
  friend inline Formula operator+(const Formula& a, double b) {
    return Formula(add_scalar(a.x_, b));
  }
  friend inline Formula operator-(const Formula& a, double b) { return a + -b; }
  friend inline Formula operator-(double a, const Formula& b) { return -b + a; }
  friend inline Formula operator*(const Formula& a, double b) {
    return Formula(mul_scalar(a.x_, b));
  }

  /// A tensor of bool.
  struct Truth {
    Tensor mask;
  };
  friend inline Truth operator<(const Formula& a, const Formula& b) { return {lt(a.x_, b.x_)}; }
  friend inline Truth operator<(const Formula& a, double b) { return {lt(a.x_, b)}; }
  friend inline Truth operator>(const Formula& a, const Formula& b) { return {gt(a.x_, b.x_)}; }

  struct Math {
    static inline Formula filled(const Formula& x, double value) {
      return Formula(value == 0 ? zeros_like(x.x_) : mul_scalar(ones_like(x.x_), value));
    }
    static inline Formula select(const Truth& truth, const Formula& a, const Formula& b) {
      return Formula(where(truth.mask, a.x_, b.x_));
    }
    static inline Formula square(const Formula& x) { return Formula(ops::square(x.x_)); }
    static inline Formula power(const Formula& x, double exponent) {
      return Formula(pow_scalar(x.x_, exponent));
    }
    static inline Formula sign(const Formula& x) { return Formula(ops::sign(x.x_)); }
    static inline Formula abs(const Formula& x) { return Formula(ops::abs(x.x_)); }
    static inline Formula exp(const Formula& x) { return Formula(ops::exp(x.x_)); }
    static inline Formula exp2(const Formula& x) { return Formula(ops::exp2(x.x_)); }
    static inline Formula sin(const Formula& x) { return Formula(ops::sin(x.x_)); }
    static inline Formula cos(const Formula& x) { return Formula(ops::cos(x.x_)); }
    static inline Formula tan(const Formula& x) { return Formula(ops::tan(x.x_)); }
    static inline Formula sinh(const Formula& x) { return Formula(ops::sinh(x.x_)); }
    static inline Formula cosh(const Formula& x) { return Formula(ops::cosh(x.x_)); }
    static inline Formula tanh(const Formula& x) { return Formula(ops::tanh(x.x_)); }
    static inline Formula sigmoid(const Formula& x) { return Formula(ops::sigmoid(x.x_)); }
    static inline Formula softplus(const Formula& x) { return Formula(ops::softplus(x.x_)); }
  };

 private:
  Tensor x_;
};

/// f''(x), by operators; undefined where it is 0 everywhere.
template <class F, class... Numbers>
inline Tensor second_derivative(const Tensor& x, Numbers... numbers) {
  if constexpr (requires(Formula formula) { F::second(formula, numbers...); }) {
    return F::second(Formula(x), numbers...).tensor();
  } else {
    return {};
  }
}

/// The gradient "name_backward(x, grad)" of a function of x and of numbers: linear in grad.
template <class F, std::size_t numbers>
struct Gradient {
  static inline const Op* op = nullptr;

  /// Gradient of the function.
  static void backward(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out) {
    out[0] = call_one(*op, {context.in[0], grads[0]}, context.attributes);
  }

  /// Gradient of the gradient.
  static void again(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
    const Tensor& x = context.in[0];
    if (context.needs(1)) {
      out[1] = call_one(context.op, {x, grads[0]}, context.attributes);
    }
    if (context.needs(0)) {
      if (const Tensor second = second_of(x, context.attributes)) {
        out[0] = mul(mul(grads[0], context.in[1]), second);
      }
    }
  }

 private:
  static Tensor second_of(const Tensor& x, const Attributes& attributes) {
    static_assert(numbers <= 3);
    const std::array<double, numbers> n = numbers_of<numbers>(attributes);
    if constexpr (numbers == 0) {
      return second_derivative<F>(x);
    } else if constexpr (numbers == 1) {
      return second_derivative<F>(x, n[0]);
    } else if constexpr (numbers == 2) {
      return second_derivative<F>(x, n[0], n[1]);
    } else {
      return second_derivative<F>(x, n[0], n[1], n[2]);
    }
  }
};

void infer_gradient(const Call& call, ResultShapes& out);
void gradient_rule(const RuleContext& context, Strategies& strategies);

/// Registers the gradient. Args: the aggregate of the numbers; void where there are none.
template <class F, class Args, std::size_t numbers>
inline const Op& register_gradient(const std::string& name) {
  using functions::GradientOf;
  return *(Gradient<F, numbers>::op = &register_op<Args>(
               {.schema = name + "_backward(x, grad)",
                .infer = infer_gradient,
                .cpu = in_workspace<copied_cpu<GradientOf<F>, 2, numbers>>,
                .workspace = workspace_of_copies<copied_cpu<GradientOf<F>, 2, numbers>>,
                .element = element<GradientOf<F>>,
                .rule = gradient_rule,
                .backward = Gradient<F, numbers>::again,
                .saves_inputs = saves_all,
                .about = "The gradient of " + name + "."}));
}

/// Registers a function of one floating operand and of numbers, "name(x)" with its in-place and out
/// variants, and its gradient.
template <class F, class Args, std::size_t numbers>
inline operands::PointwiseForms register_with_numbers(const std::string& name, const char* about);

/// An operator of one operand that keeps its shape; floating types only.
void infer_floating_unary(const Call& call, ResultShapes& out);
/// One floating type, all operands broadcast together.
void infer_function(const Call& call, ResultShapes& out);
/// Functions that never decrease: the largest element stays the largest.
void monotone_rule(const RuleContext& context, Strategies& strategies);

template <class F, class Args, std::size_t numbers>
inline operands::PointwiseForms register_with_numbers(const std::string& name, const char* about) {
  register_gradient<F, Args, numbers>(name);
  return operands::register_pointwise<Args>(
      {.schema = name + "(x)",
       .infer = infer_floating_unary,
       .cpu = in_workspace<copied_cpu<F, 1, numbers>>,
       .workspace = workspace_of_copies<copied_cpu<F, 1, numbers>>,
       .element = element<F>,
       .rule = rules::pointwise,
       .backward = Gradient<F, numbers>::backward,
       .saves_inputs = saves_all,
       .about = about});
}

/// Registers a function of several operands, which broadcast, and of numbers, with its in-place and
/// out variants.
template <class F, class Args, std::size_t operands, std::size_t numbers = 0>
inline operands::PointwiseForms register_function(
    const char* schema,
    void (*backward)(const BackwardContext&, std::span<const Tensor>, std::span<Tensor>),
    const char* about, void (*rule)(const RuleContext&, Strategies&) = rules::pointwise,
    std::uint64_t saves_inputs = saves_all) {
  return tessera::operands::register_pointwise<Args>({.schema = schema,
                                                      .infer = infer_function,
                                                      .cpu = function_cpu<F, operands, numbers>,
                                                      .element = element<F>,
                                                      .rule = rule,
                                                      .backward = backward,
                                                      .saves_inputs = saves_inputs,
                                                      .about = about});
}

}  // namespace tessera::ops::elementwise
