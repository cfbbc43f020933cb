// A random permutation: randperm_, positions in the order of their words.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :random_call;

namespace tessera::ops {
namespace {

using namespace random_numbers;

void randperm_infer(const Call& call, ResultShapes& out) {
  check_dims(call, 0, 1);
  check_type(call, 0, DType::i64);
  out.push_back({call.in[0].shape(), DType::i64});
}

void randperm_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  ResultShapes checked;
  randperm_infer(call, checked);
  const auto arguments = call.args<RandomArgs>();
  const SpecArgument whole = arguments.whole;
  const std::int64_t count = whole ? whole->shape[0] : out[0].numel();
  const std::span words(w.take<std::uint32_t>(count), static_cast<std::size_t>(count));
  const std::span order(w.take<std::int64_t>(count), words.size());
  if (w.counts()) {
    return;
  }
  words_of(arguments.numbers, 0, words);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return std::pair(words[static_cast<std::size_t>(a)], a) <
           std::pair(words[static_cast<std::size_t>(b)], b);
  });
  std::int64_t at = 0;
  const std::int64_t stride = out[0].strides()[0];
  const auto write = [&](std::int64_t first, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) {
      out[0].data<std::int64_t>()[at++ * stride] = order[static_cast<std::size_t>(first + i)];
    }
  };
  if (!whole) {
    write(0, count);
  } else {
    check_part(local_shape(*whole), out[0].numel());
    for_each_run(whole->shape, LocalPart{local_offset(*whole), local_shape(*whole)}, write);
  }
}

void randperm_rule(const RuleContext& context, Strategies& strategies) {
  rules::same_dim(context, strategies, 0);
}

const Op& randperm_op = register_op<RandomArgs>({
    .schema = "randperm_(x)",
    .infer = randperm_infer,
    .cpu = in_workspace<randperm_cpu>,
    .workspace = workspace_of<randperm_cpu>,
    .rule = randperm_rule,
    .localize = localize_result<RandomArgs>,
    .in_place = true,
    .about = "Fills x with a permutation of 0 to n - 1.",
});

}  // namespace

Tensor randperm_(const Tensor& x, RandomStream& stream) {
  operands::given("randperm_", "x", x);
  return call_one(randperm_op, {x},
                  RandomArgs{.numbers = RandomSource(stream).take("randperm_", x.shape())});
}

}  // namespace tessera::ops
