module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/kernels/types.hpp"
#include "sort/kernels/order.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :sort_call;

namespace tessera::ops::sorting {

void sort_lines(const Tensor& x, const Dims& dim, bool descending, std::span<Tensor> out) {
  const operands::ReducedOperand r = operands::reduced_operand(x, dim);
  const std::int64_t count = dim.empty() ? 1 : out[0].shape()[static_cast<int>(dim[0])];
  std::vector<kernels::Entry> line(static_cast<std::size_t>(r.reduced));
  auto* indices = out[1].data<std::int64_t>();
  kernels::visit(x.dtype(), [&]<class T>(T) {
    const auto* from = static_cast<const T*>(r.x.raw_data());
    auto* values = static_cast<T*>(out[0].raw_data());
    for (std::int64_t o = 0; o < r.outer; ++o) {
      for (std::int64_t i = 0; i < r.inner; ++i) {
        const auto at = [&](std::int64_t k) { return (o * r.reduced + k) * r.inner + i; };
        for (std::int64_t k = 0; k < r.reduced; ++k) {
          const std::uint64_t key = kernels::key_of(from[at(k)]);
          line[static_cast<std::size_t>(k)] = {descending ? ~key : key, k};
        }
        if (count == r.reduced) {
          std::sort(line.begin(), line.end());
        } else {
          std::partial_sort(line.begin(), line.begin() + count, line.end());
        }
        for (std::int64_t k = 0; k < count; ++k) {
          const std::int64_t to = (o * count + k) * r.inner + i;
          indices[to] = line[static_cast<std::size_t>(k)].index;
          values[to] = from[at(indices[to])];
        }
      }
    }
  });
}

void other_dims(const RuleContext& context, Strategies& strategies, const Dims& sorted) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (!sorted.contains(d)) {
      rules::same_dim(context, strategies, d);
    }
  }
}

Tensor to_sources(const BackwardContext& context, const Tensor& grad, std::int64_t dim) {
  const Tensor& x = context.in[0];
  return grad && x.dims() > 0 ? scatter_add(zeros_like(x), context.out[1], grad, dim) : grad;
}

}  // namespace tessera::ops::sorting
