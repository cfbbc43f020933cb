// The distinct elements of a tensor: unique.
module;
#include <cstdint>
#include <span>
#include <utility>

#include "shared/kernels/types.hpp"
#include "sort/kernels/sort.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :sort_call;

namespace tessera::ops {
namespace {

using namespace sorting;

// unique: its results have room for as many values as x has elements, as shapes follow from
// shapes; the function cuts off what is left over.

void unique_infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  const Dims most{x.numel()};
  out.push_back({most, x.dtype()});
  out.push_back({x.shape(), DType::i64});
  out.push_back({most, DType::i64});
  out.push_back({{}, DType::i64});
}

void unique_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  const std::int64_t count = x.numel();
  const Tensor order = temporary(w, x.shape(), DType::i64);
  const Tensor sorted = temporary(w, x.shape(), x.dtype());
  kernels::sort(w, x.dtype(), {1, count, 1, count}, false, pointer<void>(w, x),
                pointer<void>(w, sorted), pointer<std::int64_t>(w, order));
  if (w.counts()) {
    return;
  }
  auto* const inverse = out[1].data<std::int64_t>();
  auto* const counts = out[2].data<std::int64_t>();
  std::int64_t found = 0;
  kernels::visit(x.dtype(), [&]<class T>(T) {
    const auto* from = pointer<const T>(sorted);
    auto* values = pointer<T>(out[0]);
    for (std::int64_t k = 0; k < count; ++k) {
      // NaN is not equal to itself, so each is a value of its own.
      if (k == 0 || kernels::plain(from[k]) != kernels::plain(from[k - 1])) {
        values[found] = from[k];
        counts[found++] = 0;
      }
      ++counts[found - 1];
      inverse[order.data<std::int64_t>()[k]] = found - 1;
    }
    for (std::int64_t rest = found; rest < count; ++rest) {
      values[rest] = values[found - 1];
      counts[rest] = 0;
    }
  });
  *out[3].data<std::int64_t>() = found;
}

/// Which values there are, only who has all elements knows: whole operands only.
void unique_rule(const RuleContext&, Strategies&) {}

const Op& unique_op = register_op(
    {.schema = "unique(x)",
     .infer = unique_infer,
     .cpu = in_workspace<unique_cpu>,
     .workspace = workspace_of<unique_cpu>,
     .rule = unique_rule,
     .about =
         "The distinct elements in ascending order, the position of each element of x among them, "
         "how often each occurs, and their number; padded to the number of elements of x."});

}  // namespace

UniqueElements unique(const Tensor& x, bool return_inverse, bool return_counts) {
  const NoGrad constant;
  Tensors all = call(unique_op, {x}, {});
  const Tensor& found = all[3].is_distributed() ? all[3].local() : all[3];
  if (found.is_meta()) {
    fail({.thing = "unique",
          .wrong = "the number of distinct elements depends on the data",
          .expected = "a tensor with data",
          .got = "one on the meta device",
          .advice = "do not call it on meta tensors"});
  }
  const auto cut = [count = static_cast<std::int64_t>(found.item())](const Tensor& padded) {
    return clone(narrow(padded, 0, 0, count));
  };
  return {cut(all[0]), return_inverse ? std::move(all[1]) : Tensor(),
          return_counts ? cut(all[2]) : Tensor()};
}

}  // namespace tessera::ops
