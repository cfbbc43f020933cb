module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <tessera/printable.hpp>
#include <vector>

#include "shared/kernels/philox.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :random_call;

namespace tessera::ops::random_numbers {

void any_dim_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
}

void infer_same(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void check_probability(const Call& call, double p) {
  if (!(p >= 0 && p <= 1)) {
    refuse(call, {.wrong = "p must be a probability",
                  .expected = "0 to 1",
                  .got = fmt::format("{}", printable(p))});
  }
}

void check_part(const Dims& part, std::int64_t count) {
  if (const std::int64_t elements = checked_product(part, "random numbers"); elements != count) {
    fail({.thing = "random numbers",
          .wrong = "this rank's part of the whole tensor has another number of elements",
          .expected = fmt::format("{}", count),
          .got = fmt::format("{}", elements)});
  }
}

void words_of(const RandomNumbers& numbers, std::int64_t first, std::span<std::uint32_t> words) {
  kernels::RandomRange range = range_of(numbers);
  range.first_index = range.place(static_cast<std::uint64_t>(first));
  kernels::fill_bits(range, static_cast<std::int64_t>(words.size()), words.data());
}

}  // namespace tessera::ops::random_numbers
