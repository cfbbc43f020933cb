// binary_cross_entropy_with_logits.
module;
#include <span>

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

void bce_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = operands::sum_to(mul(grads[0], sub(sigmoid(context.in[0]), context.in[1])),
                              context.in_shapes[0]);
  }
  if (context.needs(1)) {
    out[1] = operands::sum_to(neg(mul(grads[0], context.in[0])), context.in_shapes[1]);
  }
}

const Op& bce_op =
    register_op({.schema = "binary_cross_entropy_with_logits(x, target)",
                 .infer = infer_function,
                 .cpu = function_cpu<functions::LogisticLoss, 2>,
                 .element = element<functions::LogisticLoss>,
                 .rule = rules::pointwise,
                 .backward = bce_backward,
                 .saves_inputs = saves_all,
                 .about = "-target log sigmoid(x) - (1 - target) log(1 - sigmoid(x))."});

}  // namespace

Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        Reduction reduction) {
  check_same_shape("binary_cross_entropy_with_logits", x, target);
  return reduced(call_one(bce_op, {x, target}), reduction);
}

}  // namespace tessera::ops
