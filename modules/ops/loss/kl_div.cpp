// The Kullback-Leibler divergence: kl_div.
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

struct KlDivArgs {
  bool log_target;
};

void kl_div_cpu(const Call& call, std::span<Tensor> out) {
  call.args<KlDivArgs>().log_target ? function_cpu<functions::KlDivOfLogarithm, 2>(call, out)
                                    : function_cpu<functions::KlDiv, 2>(call, out);
}

Element kl_div_element(const Call& call) {
  return call.args<KlDivArgs>().log_target ? element_of<functions::KlDivOfLogarithm>()
                                           : element_of<functions::KlDiv>();
}

/// A target of 0 counts nothing; its gradient is that of 0 too.
void kl_div_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  const bool log_target = context.args<KlDivArgs>().log_target;
  const Tensor& x = context.in[0];
  const Tensor& target = context.in[1];
  const Tensor weight = log_target ? exp(target) : target;
  if (context.needs(0)) {
    const Tensor counted = log_target ? weight : relu(weight);
    out[0] = operands::sum_to(neg(mul(grads[0], counted)), context.in_shapes[0]);
  }
  if (context.needs(1)) {
    Tensor slope;
    if (log_target) {
      slope = mul(weight, add_scalar(sub(target, x), 1));
    } else {
      const Tensor counts = gt(target, zeros_like(target));
      const Tensor safe = where(counts, target, ones_like(target));
      slope = where(counts, sub(add_scalar(log(safe), 1), x), zeros_like(target));
    }
    out[1] = operands::sum_to(mul(grads[0], slope), context.in_shapes[1]);
  }
}

const Op& kl_div_op =
    register_op<KlDivArgs>({.schema = "kl_div(log_probs, target)",
                            .infer = infer_function,
                            .cpu = kl_div_cpu,
                            .element = kl_div_element,
                            .rule = rules::pointwise,
                            .backward = kl_div_backward,
                            .saves_inputs = saves_all,
                            .about = "target (log target - log_probs), 0 for a target of 0."});

}  // namespace

Tensor kl_div(const Tensor& log_probs, const Tensor& target, Reduction reduction, bool log_target) {
  check_same_shape("kl_div", log_probs, target);
  return reduced(call_one(kl_div_op, {log_probs, target}, KlDivArgs{.log_target = log_target}),
                 reduction);
}

}  // namespace tessera::ops
