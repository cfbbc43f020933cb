// Random integers: randint_.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "shared/kernels/philox.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :random_call;

namespace tessera::ops {
namespace {

using namespace random_numbers;

void randint_cpu(const Call& call, std::span<Tensor>) {
  AttributeReader attributes = call.read();
  const std::int64_t low = attributes.free_integer();
  const auto span = static_cast<std::uint64_t>(attributes.free_integer() - low);
  fill_from_words(call, read_range(attributes), [&](std::uint32_t word) {
    return low + static_cast<std::int64_t>((word * span) >> 32);
  });
}

const Op& randint_op = register_op({
    .schema = "randint_(x; low: free, high: free, seed: free, stream: free, offset: free, run: "
              "free, stride: free)",
    .infer = infer_same,
    .cpu = randint_cpu,
    .rule = any_dim_rule,
    .localize = localize_result,
    .in_place = true,
    .about = "Fills x with integers of [low, high).",
});

}  // namespace

Tensor randint_(const Tensor& x, std::int64_t low, std::int64_t high, const RandomSource& source) {
  operands::given("randint_", "x", x);
  const auto span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  if (low >= high || span > (std::uint64_t{1} << 32) || x.dtype() == DType::boolean) {
    fail(
        fmt::format("randint_: expected low < high, at most 2^32 apart, and x not of bool (got "
                    "{} and {}, {})",
                    low, high, name_of(x.dtype())));
  }
  Attributes attributes;
  attributes.free_integer(low).free_integer(high);
  add_numbers(attributes, source.take("randint_", x.shape()));
  return call_one(randint_op, {x}, attributes);
}

}  // namespace tessera::ops
