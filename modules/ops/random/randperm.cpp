// A random permutation: randperm_, positions in the order of their words.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "shared/kernels/philox.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

/// The local call learns which elements it has from operand 0's Spec, as a last attribute.
Attributes localize(const LocalContext& context) {
  Attributes local = context.call.attributes;
  local.add_pointer(context.in[0]);
  return local;
}

std::vector<std::uint32_t> words_of(kernels::RandomRange range, std::int64_t first,
                                    std::int64_t count) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>(count));
  range.first_index = range.place(static_cast<std::uint64_t>(first));
  kernels::fill_bits(range, count, words.data());
  return words;
}

void randperm_infer(const Call& call, ResultShapes& out) {
  check_dims(call, 0, 1);
  check_type(call, 0, DType::i64);
  out.push_back({call.in[0].shape(), DType::i64});
}

void randperm_cpu(const Call& call, std::span<Tensor> out) {
  ResultShapes checked;
  randperm_infer(call, checked);
  AttributeReader attributes = call.read();
  const Spec* const spec = spec_of(call, 0);
  const std::int64_t count = spec == nullptr ? out[0].numel() : spec->shape[0];
  const std::vector<std::uint32_t> words = words_of(read_range(attributes), 0, count);
  std::vector<std::int64_t> order(words.size());
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
  if (spec == nullptr) {
    write(0, count);
  } else {
    for_each_run(spec->shape, LocalPart{local_offset(*spec), local_shape(*spec)}, write);
  }
}

void randperm_rule(const RuleContext& context, Strategies& strategies) {
  rules::same_dim(context, strategies, 0);
}

const Op& randperm_op = register_op({
    .schema = "randperm_(x; seed: free, stream: free, offset: free, run: free, stride: free)",
    .infer = randperm_infer,
    .cpu = randperm_cpu,
    .rule = randperm_rule,
    .localize = localize,
    .in_place = true,
    .about = "Fills x with a permutation of 0 to n - 1.",
});

}  // namespace

Tensor randperm_(const Tensor& x, RandomStream& stream) {
  operands::given("randperm_", "x", x);
  Attributes attributes;
  add_numbers(attributes, RandomSource(stream).take("randperm_", x.shape()));
  return call_one(randperm_op, {x}, attributes);
}

}  // namespace tessera::ops
