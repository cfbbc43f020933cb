// dropout: linear in x, and its own gradient with the same numbers.
module;
#include <cstddef>
#include <cstdint>
#include <span>

#include "shared/kernels/philox.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :random_call;

namespace tessera::ops {
namespace {

using namespace random_numbers;

void dropout_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  const auto arguments = call.args<ProbabilityArgs>();
  const double p = arguments.p;
  kernels::RandomRange range = range_of(arguments.numbers);
  if (w.counts()) {
    return;
  }
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    for_each_local_run(arguments.whole, x.numel(), range,
                       [&](std::int64_t at, std::int64_t first, std::int64_t count) {
                         range.first_index = static_cast<std::uint64_t>(first);
                         kernels::drop(range, count, p, pointer<T>(x) + at,
                                       pointer<T>(out[0]) + at);
                       });
  });
}

void dropout_infer(const Call& call, ResultShapes& out) {
  check_probability(call, call.args<ProbabilityArgs>().p);
  infer_same(call, out);
}

void dropout_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out);

/// Terms of a sum all lose the same elements.
void dropout_rule(const RuleContext& context, Strategies& strategies) {
  any_dim_rule(context, strategies);
  rules::linear(context, strategies);
}

const Op& dropout_op = register_op<ProbabilityArgs>({
    .schema = "dropout(x)",
    .infer = dropout_infer,
    .cpu = in_workspace<dropout_cpu>,
    .workspace = workspace_of<dropout_cpu>,
    .rule = dropout_rule,
    .localize = localize_result<ProbabilityArgs>,
    .backward = dropout_backward,
    .about = "x / (1 - p) with probability 1 - p, else 0.",
});

void dropout_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  out[0] = call_one(dropout_op, {grads[0]}, context.attributes);
}

}  // namespace

Tensor dropout(const Tensor& x, double p, const RandomSource& source) {
  operands::given("dropout", "x", x);
  return call_one(dropout_op, {x},
                  ProbabilityArgs{.p = p, .numbers = source.take("dropout", x.shape())});
}

}  // namespace tessera::ops
