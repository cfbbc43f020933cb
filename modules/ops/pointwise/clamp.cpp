// Within two bounds, numbers or tensors: clamp.
module;
#include <span>

#include "pointwise/functions/arithmetic.hpp"
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

struct ClampArgs {
  Dynamic<double> min;
  Dynamic<double> max;
};

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void clamp_gradient_infer(const Call& call, ResultShapes& out) {
  operands::check_floating(call.op.name, call.in[0]);
  check_one_type(call);
  check_shape(call, 1, call.in[0].shape());
  infer(call, out);
}

void clamp_gradient_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
    strategies.push_back(rules::strategy({Replicate(), Partial(op)}, {Partial(op)}));
  }
}

void clamp_gradient_backward(const BackwardContext& context, std::span<const Tensor> grads,
                             std::span<Tensor> out) {
  if (context.needs(1)) {
    out[1] = call_one(context.op, {context.in[0], grads[0]}, context.attributes);
  }
}

using functions::Clamp;
using functions::GradientOf;

/// The gradient passes where x is inside the bounds; at the bounds themselves it is 0.
constexpr WorkspaceKernel clamp_gradient_cpu = copied_cpu<GradientOf<Clamp>, 2, 2>;
const Op& clamp_gradient =
    register_op<ClampArgs>({.schema = "clamp_backward(x, grad)",
                            .infer = clamp_gradient_infer,
                            .cpu = in_workspace<clamp_gradient_cpu>,
                            .workspace = workspace_of_copies<clamp_gradient_cpu>,
                            .element = element<GradientOf<Clamp>>,
                            .rule = clamp_gradient_rule,
                            .backward = clamp_gradient_backward,
                            .saves_inputs = 0b01,
                            .about = "grad where min < x < max, else 0."});

void clamp_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  out[0] = call_one(clamp_gradient, {context.in[0], grads[0]}, context.attributes);
}

const operands::PointwiseForms clamp_forms = operands::register_pointwise<ClampArgs>(
    {.schema = "clamp(x)",
     .infer = infer,
     .cpu = in_workspace<copied_cpu<Clamp, 1, 2>>,
     .workspace = workspace_of_copies<copied_cpu<Clamp, 1, 2>>,
     .element = element<Clamp>,
     .rule = rules::pointwise,
     .backward = clamp_backward,
     .saves_inputs = saves_all,
     .about = "x limited to [min, max]."});

}  // namespace

Tensor clamp(const Tensor& x, const Number& low, const Number& high) {
  return call_one(clamp_forms.op, {x}, ClampArgs{low, high});
}

Tensor clamp(const Tensor& x, const Tensor& low, const Tensor& high) {
  operands::given("clamp", "x", x);
  if (!low && !high) {
    fail({.thing = "clamp",
          .wrong = "both bounds are undefined tensors",
          .expected = "at least one bound",
          .advice = "pass low or high"});
  }
  const Tensor raised = low ? maximum(x, low) : x;
  return high ? minimum(raised, high) : raised;
}

Tensor clamp_(const Tensor& x, const Number& low, const Number& high) {
  return call_one(clamp_forms.in_place, {x}, ClampArgs{low, high});
}

}  // namespace tessera::ops
