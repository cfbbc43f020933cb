module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <tessera/printable.hpp>

#include "shared/kernels/philox.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :random_call;

namespace tessera::ops {

void add_numbers(Attributes& attributes, const RandomNumbers& numbers) {
  for (const std::uint64_t field :
       {numbers.seed, numbers.stream, numbers.offset, numbers.run, numbers.stride}) {
    attributes.free_integer(static_cast<std::int64_t>(field));
  }
}

kernels::RandomRange read_range(AttributeReader& attributes) {
  kernels::RandomRange range;
  for (std::uint64_t* field :
       {&range.seed, &range.stream, &range.offset, &range.run, &range.stride}) {
    *field = static_cast<std::uint64_t>(attributes.free_integer());
  }
  return range;
}

const Spec* spec_of(const Call& call, std::size_t fixed) {
  const std::span<const std::int64_t> all = call.attributes.fixed();
  return all.size() == fixed ? nullptr : reinterpret_cast<const Spec*>(all.back());
}

}  // namespace tessera::ops

namespace tessera::ops::random_numbers {

void any_dim_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
}

Attributes localize_result(const LocalContext& context) {
  Attributes local = context.call.attributes;
  local.add_pointer(context.out[0]);
  return local;
}

void infer_same(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void check_probability(const Call& call, double p) {
  if (!(p >= 0 && p <= 1)) {
    refuse(call, fmt::format("p is a probability (expected 0 to 1, got {})", printable(p)));
  }
}

}  // namespace tessera::ops::random_numbers
