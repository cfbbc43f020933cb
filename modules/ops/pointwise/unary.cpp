// The functions of one operand: what follows from the list in functions/unary.hpp.
module;
#include "pointwise/functions/unary.hpp"

#include <fmt/format.h>

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "pointwise/kernels/apply.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :pointwise_call;

namespace tessera::ops {
namespace {

using namespace elementwise;
using functions::OfIntegers;
using operands::PointwiseForms;
using unary_functions::Operator;

void infer_any(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void linear_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  out[0] = call_one(context.op, {grads[0]});
}

template <class F>
PointwiseForms register_unary() {
  const std::string name = F::name;
  if constexpr (!F::linear) {
    register_gradient<F, void, 0>(name);
  }
  return operands::register_pointwise(
      {.schema = name + "(x)",
       .infer = F::of_integers == OfIntegers::compute ? infer_any : infer_floating_unary,
       .cpu = in_workspace<copied_cpu<F, 1>>,
       .workspace = workspace_of_copies<copied_cpu<F, 1>>,
       .element = element<F>,
       .rule = F::linear     ? rules::pointwise_linear
               : F::monotone ? monotone_rule
                             : rules::pointwise,
       .backward = F::linear ? linear_backward : Gradient<F, 0>::backward,
       .saves_inputs = F::linear ? saves_none : saves_all,
       .about = F::about});
}

template <class... F>
std::map<std::string_view, Operator> register_all(functions::List<F...> /*all*/) {
  std::map<std::string_view, Operator> all;
  const auto add = [&](std::string_view name, OfIntegers of_integers, const PointwiseForms& forms) {
    all.emplace(name, Operator{forms.op, forms.in_place, of_integers == OfIntegers::cast,
                               of_integers == OfIntegers::copy});
  };
  (add(F::name, F::of_integers, register_unary<F>()), ...);
  return all;
}

const std::map<std::string_view, Operator> operators = register_all(functions::UnaryFunctions{});

// gelu has two forms.

struct GeluArgs {
  bool tanh;
};

using functions::Gelu;
using functions::GeluTanh;
using functions::GradientOf;

template <class F, class OfTanh, std::size_t count>
void gelu_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  call.args<GeluArgs>().tanh ? copied_cpu<OfTanh, count>(call, out, w)
                             : copied_cpu<F, count>(call, out, w);
}
template <class F, class OfTanh>
Element gelu_element(const Call& call) {
  return call.args<GeluArgs>().tanh ? element_of<OfTanh>() : element_of<F>();
}

void gelu_again(const BackwardContext& context, std::span<const Tensor> grads,
                std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  if (context.needs(1)) {
    out[1] = call_one(context.op, {x, grads[0]}, context.attributes);
  }
  if (context.needs(0)) {
    out[0] = mul(mul(grads[0], context.in[1]), context.args<GeluArgs>().tanh
                                                   ? second_derivative<GeluTanh>(x)
                                                   : second_derivative<Gelu>(x));
  }
}

constexpr WorkspaceKernel gelu_backward_cpu = gelu_cpu<GradientOf<Gelu>, GradientOf<GeluTanh>, 2>;
const Op& gelu_gradient =
    register_op<GeluArgs>({.schema = "gelu_backward(x, grad)",
                           .infer = infer_gradient,
                           .cpu = in_workspace<gelu_backward_cpu>,
                           .workspace = workspace_of_copies<gelu_backward_cpu>,
                           .element = gelu_element<GradientOf<Gelu>, GradientOf<GeluTanh>>,
                           .rule = gradient_rule,
                           .backward = gelu_again,
                           .saves_inputs = saves_all,
                           .about = "The gradient of gelu."});

void gelu_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  out[0] = call_one(gelu_gradient, {context.in[0], grads[0]}, context.attributes);
}

const PointwiseForms gelu_forms = operands::register_pointwise<GeluArgs>(
    {.schema = "gelu(x)",
     .infer = infer_floating_unary,
     .cpu = in_workspace<gelu_cpu<Gelu, GeluTanh, 1>>,
     .workspace = workspace_of_copies<gelu_cpu<Gelu, GeluTanh, 1>>,
     .element = gelu_element<Gelu, GeluTanh>,
     .rule = rules::pointwise,
     .backward = gelu_backward,
     .saves_inputs = saves_all,
     .about = "x Phi(x) with the normal distribution function Phi, exact or in its tanh "
              "approximation."});

}  // namespace

const unary_functions::Operator& unary_functions::find(std::string_view name) {
  const auto found = operators.find(name);
  if (found == operators.end()) {
    fail({.thing = std::string(name),
          .wrong = "no function of one operand has this name",
          .advice = "add it to the list in functions/unary.hpp"});
  }
  return found->second;
}

Tensor unary_functions::call(const Operator& function, const Tensor& x) {
  if (!function.casts_integers && !function.copies_integers) {
    return call_one(function.op, {x});
  }
  operands::given(function.op.name, "x", x);
  if (is_floating(x.dtype())) {
    return call_one(function.op, {x});
  }
  return function.copies_integers ? clone(x) : call_one(function.op, {cast(x, DType::f32)});
}

Tensor gelu(const Tensor& x, bool tanh_form) {
  return call_one(gelu_forms.op, {x}, GeluArgs{tanh_form});
}

}  // namespace tessera::ops
