// Within two bounds, numbers or tensors: clamp.
module;
#include <cstdint>
#include <span>
#include <string>

#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

struct ClampArgs {
  Dynamic<double> min;
  Dynamic<double> max;
};

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void clamp_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto args = call.args<ClampArgs>();
  const Tensor x = contiguous_operand(w, call.in[0]);
  if (w.counts()) {
    return;
  }
  const Tensor& y = out[0];
  const auto apply = [&](kernels::BinaryOp op, const Tensor& from, double value) {
    kernels::binary_scalar(op, y.dtype(), y.numel(), from.raw_data(), value, y.raw_data());
  };
  apply(kernels::BinaryOp::maximum, x, args.min);
  apply(kernels::BinaryOp::minimum, y, args.max);
}

std::string clamp_element(const Call&) { return "simd::smaller(simd::larger(a, p), q)"; }
std::string clamp_gradient_element(const Call&) { return "(a <= p) | (a >= q) ? V{} : b"; }

void clamp_gradient_infer(const Call& call, ResultShapes& out) {
  check_one_type(call);
  check_shape(call, 1, call.in[0].shape());
  infer(call, out);
}

/// The gradient passes where x is inside the bounds; at the bounds themselves it is 0.
void clamp_gradient_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto args = call.args<ClampArgs>();
  const Tensor x = contiguous_operand(w, call.in[0]);
  const Tensor grad = contiguous_operand(w, call.in[1]);
  const Tensor outside = temporary(w, x.shape(), DType::boolean);
  if (w.counts()) {
    return;
  }
  const auto type = x.dtype();
  auto* mask = static_cast<std::uint8_t*>(outside.raw_data());
  kernels::compare_scalar(kernels::CompareOp::less_equal, type, x.numel(), x.raw_data(), args.min,
                          mask);
  kernels::masked_fill(type, x.numel(), grad.raw_data(), mask, 0, out[0].raw_data());
  kernels::compare_scalar(kernels::CompareOp::greater_equal, type, x.numel(), x.raw_data(),
                          args.max, mask);
  kernels::masked_fill(type, x.numel(), out[0].raw_data(), mask, 0, out[0].raw_data());
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

const Op& clamp_gradient = register_op<ClampArgs>({.schema = "clamp_backward(x, grad)",
                                                   .infer = clamp_gradient_infer,
                                                   .cpu = in_workspace<clamp_gradient_cpu>,
                                                   .workspace = workspace_of<clamp_gradient_cpu>,
                                                   .element = clamp_gradient_element,
                                                   .rule = clamp_gradient_rule,
                                                   .backward = clamp_gradient_backward,
                                                   .saves_inputs = 0b01,
                                                   .about = "grad where min < x < max, else 0."});

void clamp_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  out[0] = call_one(clamp_gradient, {context.in[0], grads[0]}, context.attributes);
}

const operands::PointwiseForms clamp_forms =
    operands::register_pointwise<ClampArgs>({.schema = "clamp(x)",
                                             .infer = infer,
                                             .cpu = in_workspace<clamp_cpu>,
                                             .workspace = workspace_of_copies<clamp_cpu>,
                                             .element = clamp_element,
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
