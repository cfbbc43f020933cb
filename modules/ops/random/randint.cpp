// Random integers: randint_.
module;
#include <fmt/format.h>

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

struct RandintArgs {
  Dynamic<std::int64_t> low;
  Dynamic<std::int64_t> high;
  Dynamic<RandomNumbers> numbers;
  SpecArgument whole{};
};

void randint_cpu(const Call& call, std::span<const Tensor>, Workspace& w) {
  const auto arguments = call.args<RandintArgs>();
  const std::int64_t low = arguments.low;
  const std::int64_t high = arguments.high;
  const auto span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  if (low >= high || span > std::uint64_t{1} << 32) {
    refuse(call, fmt::format("[low, high) must hold 1 to 2^32 integers (got low {}, high {})", low,
                             high));
  }
  fill_from_words(w, call, arguments, [&](std::uint32_t word) {
    return low + static_cast<std::int64_t>((word * span) >> 32);
  });
}

const Op& randint_op = register_op<RandintArgs>({
    .schema = "randint_(x)",
    .infer = infer_same,
    .cpu = in_workspace<randint_cpu>,
    .workspace = workspace_of<randint_cpu>,
    .rule = any_dim_rule,
    .localize = localize_result<RandintArgs>,
    .in_place = true,
    .about = "Fills x with integers of [low, high).",
});

}  // namespace

Tensor randint_(const Tensor& x, std::int64_t low, std::int64_t high, const RandomSource& source) {
  operands::given("randint_", "x", x);
  const auto span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  if (low >= high || span > (std::uint64_t{1} << 32) || x.dtype() == DType::boolean) {
    fail({.thing = "randint_",
          .wrong = "the range or the type is wrong",
          .expected = "low < high, at most 2^32 apart, and x of any type but bool",
          .got = fmt::format("low {}, high {}, {}", low, high, name_of(x.dtype()))});
  }
  return call_one(
      randint_op, {x},
      RandintArgs{.low = low, .high = high, .numbers = source.take("randint_", x.shape())});
}

}  // namespace tessera::ops
