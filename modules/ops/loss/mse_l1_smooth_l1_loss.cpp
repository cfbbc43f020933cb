// Losses of the difference of two tensors: mse_loss, l1_loss, smooth_l1_loss.
module;
#include <fmt/format.h>

#include <span>
#include <tessera/printable.hpp>

#include "pointwise/functions/losses.hpp"
#include "pointwise/kernels/apply.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :loss_call;
import :pointwise_call;

namespace tessera::ops {
namespace {

using namespace elementwise;
using namespace losses;

struct SmoothL1Args {
  Dynamic<double> beta;
};

/// Gradient with respect to a - b: its sign beyond beta, proportional within.
void smooth_l1_backward(const BackwardContext& context, std::span<const Tensor> grads,
                        std::span<Tensor> out) {
  const double beta = context.args<SmoothL1Args>().beta;
  const Tensor difference = sub(context.in[0], context.in[1]);
  const Tensor slope =
      beta == 0 ? sign(difference) : hardtanh(mul_scalar(difference, 1 / beta), -1, 1);
  const Tensor g = mul(grads[0], slope);
  out[0] = operands::sum_to(g, context.in_shapes[0]);
  if (context.needs(1)) {
    out[1] = operands::sum_to(neg(g), context.in_shapes[1]);
  }
}

const Op& smooth_l1_op = register_op<SmoothL1Args>(
    {.schema = "smooth_l1(a, b)",
     .infer = infer_function,
     .cpu = function_cpu<functions::SmoothL1, 2, 1>,
     .element = element<functions::SmoothL1>,
     .rule = rules::pointwise,
     .backward = smooth_l1_backward,
     .saves_inputs = saves_all,
     .about = "|a - b| - beta / 2, or (a - b)^2 / (2 beta) where |a - b| < beta."});

}  // namespace

Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  check_same_shape("mse_loss", a, b);
  return reduced(square(sub(a, b)), reduction);
}

Tensor l1_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  check_same_shape("l1_loss", a, b);
  return reduced(abs(sub(a, b)), reduction);
}

Tensor smooth_l1_loss(const Tensor& a, const Tensor& b, Reduction reduction, double beta) {
  check_same_shape("smooth_l1_loss", a, b);
  if (!(beta >= 0)) {
    fail({.thing = "smooth_l1_loss",
          .wrong = "beta must not be negative",
          .expected = "0 or more",
          .got = fmt::format("{}", printable(beta))});
  }
  return reduced(call_one(smooth_l1_op, {a, b}, SmoothL1Args{.beta = beta}), reduction);
}

}  // namespace tessera::ops
