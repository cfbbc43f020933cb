module;
#include <fmt/format.h>

#include <cstdint>
#include <optional>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :view_call;

namespace tessera::ops::views {

std::optional<Dims> view_strides(const Tensor& x, const Dims& shape) {
  if (x.is_contiguous()) {
    return contiguous_strides(shape);
  }
  Dims strides = Dims::filled(shape.size(), 1);
  int at = shape.size() - 1;
  std::int64_t step = x.strides().back();  // between elements of the chunk of old dims
  std::int64_t old_count = 1;
  std::int64_t new_count = 1;
  for (int d = x.dims() - 1; d >= 0; --d) {
    old_count *= x.shape()[d];
    const bool chunk_ends =
        d == 0 || (x.shape()[d - 1] != 1 && x.strides()[d - 1] != old_count * step);
    if (!chunk_ends) {
      continue;
    }
    while (at >= 0 && (new_count < old_count || shape[at] == 1)) {
      strides[at] = new_count * step;
      new_count *= shape[at--];
    }
    if (new_count != old_count) {
      return std::nullopt;
    }
    if (d > 0) {
      step = x.strides()[d - 1];
      old_count = new_count = 1;
    }
  }
  return at == -1 ? std::optional(strides) : std::nullopt;
}

void push_view(const Call& call, const Dims& shape, Tensors& out) {
  const Tensor& x = call.in[0];
  const std::optional<Dims> strides = view_strides(x, shape);
  if (!strides) {
    fail({.thing = call.op.name,
          .wrong = fmt::format("strides {} of a tensor of {} allow no view of shape {}",
                               to_string(x.strides()), to_string(x.shape()), to_string(shape)),
          .advice = "use reshape(), which copies if necessary"});
  }
  out.push_back(alias(x, shape, *strides, x.offset()));
}

}  // namespace tessera::ops::views
