// dropout: linear in x, and its own gradient with the same numbers.
module;
#include <algorithm>
#include <array>
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
    using C = kernels::Compute<T>;
    const C factor = p < 1 ? static_cast<C>(1 / (1 - p)) : C{0};
    std::array<std::uint8_t, 4096> dropped;
    for_each_local_run(arguments.whole, x.numel(), range,
                       [&](std::int64_t at, std::int64_t first, std::int64_t count) {
                         constexpr auto block =
                             static_cast<std::int64_t>(std::tuple_size_v<decltype(dropped)>);
                         for (std::int64_t done = 0; done < count; done += block) {
                           const std::int64_t size = std::min(block, count - done);
                           range.first_index = static_cast<std::uint64_t>(first + done);
                           kernels::fill_bernoulli(range, size, p, dropped.data());
                           const T* const from = pointer<T>(x) + at + done;
                           T* const to = pointer<T>(out[0]) + at + done;
                           for (std::int64_t i = 0; i < size; ++i) {
                             to[i] = dropped[static_cast<std::size_t>(i)] != 0
                                         ? T{}
                                         : static_cast<T>(static_cast<C>(from[i]) * factor);
                           }
                         }
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
