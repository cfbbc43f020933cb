// Zeros and ones by probability: bernoulli_, bernoulli.
module;
#include <cmath>
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

/// How many of the 2^32 words mean 1.
std::uint64_t words_below(const Call& call, double p) {
  check_probability(call, p);
  return static_cast<std::uint64_t>(std::ceil(p * 0x1p32));
}

void fill_bernoulli_cpu(const Call& call, std::span<const Tensor>, Workspace& w) {
  const auto arguments = call.args<ProbabilityArgs>();
  const std::uint64_t limit = words_below(call, arguments.p);
  fill_from_words(w, call, arguments, [&](std::uint32_t word) { return word < limit ? 1 : 0; });
}

void bernoulli_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor p = contiguous_operand(w, call.in[0]);
  const auto arguments = call.args<RandomArgs>();
  if (w.counts()) {
    return;
  }
  const kernels::RandomRange range = range_of(arguments.numbers);
  visit_floating(p.dtype(), call.op.name, [&]<class T>(T) {
    for_each_word(arguments.whole, p.numel(), range, [&](std::int64_t at, std::uint32_t word) {
      const auto probability = static_cast<kernels::Compute<T>>(pointer<T>(p)[at]);
      pointer<T>(out[0])[at] = static_cast<T>(static_cast<kernels::Compute<T>>(
          word < words_below(call, static_cast<double>(probability)) ? 1 : 0));
    });
  });
}

const Op& fill_bernoulli_op = register_op<ProbabilityArgs>({
    .schema = "bernoulli_(x)",
    .infer = infer_same,
    .cpu = in_workspace<fill_bernoulli_cpu>,
    .workspace = workspace_of<fill_bernoulli_cpu>,
    .rule = any_dim_rule,
    .localize = localize_result<ProbabilityArgs>,
    .in_place = true,
    .about = "Fills x with 1 with probability p, else 0.",
});

const Op& bernoulli_op = register_op<RandomArgs>({
    .schema = "bernoulli(p)",
    .infer = infer_same,
    .cpu = in_workspace<bernoulli_cpu>,
    .workspace = workspace_of<bernoulli_cpu>,
    .rule = any_dim_rule,
    .localize = localize_result<RandomArgs>,
    .about = "1 with the probability in p, else 0.",
});

}  // namespace

Tensor bernoulli_(const Tensor& x, double p, const RandomSource& source) {
  operands::given("bernoulli_", "x", x);
  return call_one(fill_bernoulli_op, {x},
                  ProbabilityArgs{.p = p, .numbers = source.take("bernoulli_", x.shape())});
}

Tensor bernoulli(const Tensor& p, const RandomSource& source) {
  operands::check_floating("bernoulli", p);
  return call_one(bernoulli_op, {p}, RandomArgs{.numbers = source.take("bernoulli", p.shape())});
}

}  // namespace tessera::ops
