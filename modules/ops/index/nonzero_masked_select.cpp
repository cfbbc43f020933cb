// Operators whose result's shape depends on the values of elements: nonzero, masked_select.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :index_call;

namespace tessera::ops {
using indexing::check_values_here;

Tensor nonzero(const Tensor& x) {
  check_values_here("nonzero", x);
  const std::vector<double> values = to_doubles(x);
  std::vector<std::int64_t> found;
  const Dims strides = contiguous_strides(x.shape());
  std::int64_t count = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != 0) {
      ++count;
      for (int d = 0; d < x.dims(); ++d) {
        found.push_back(static_cast<std::int64_t>(i) / strides[d] % x.shape()[d]);
      }
    }
  }
  const Tensor places = from_values(std::span<const std::int64_t>(found), {count, x.dims()});
  return to_device(places, x.device());
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  check_values_here("masked_select", x);
  check_values_here("masked_select", mask);
  if (mask.dtype() != DType::boolean) {
    fail({.thing = "masked_select",
          .wrong = "the mask has the wrong type",
          .expected = "bool",
          .got = std::string(name_of(mask.dtype())),
          .advice = "compare it with a number"});
  }
  const Dims shape = operands::broadcast_shape("masked_select", x.shape(), mask.shape());
  const Tensor places = nonzero(reshape(expand(mask, shape), {-1}));
  return index_select(reshape(expand(x, shape), {-1}), reshape(places, {-1}), 0);
}

}  // namespace tessera::ops
