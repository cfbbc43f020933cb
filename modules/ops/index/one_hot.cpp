// Classes as vectors of zeros and a one: one_hot.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

struct OneHotArgs {
  std::int64_t num_classes;
};

void one_hot_infer(const Call& call, ResultShapes& out) {
  const std::int64_t classes = call.args<OneHotArgs>().num_classes;
  if (call.in[0].dtype() != DType::i64 || classes < 1) {
    refuse(call, {.wrong = "the type or the number of classes is wrong",
                  .expected = "i64 and at least one class",
                  .got = fmt::format("{}, {}", name_of(call.in[0].dtype()), classes)});
  }
  Dims shape = call.in[0].shape();
  shape.push_back(classes);
  out.push_back({shape, DType::i64});
}

void one_hot_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  if (w.counts()) {
    return;
  }
  const std::int64_t classes = call.args<OneHotArgs>().num_classes;
  auto* rows = pointer<std::int64_t>(out[0]);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const std::int64_t which = pointer<std::int64_t>(x)[i];
    if (which < 0 || which >= classes) {
      refuse(call, {.wrong = fmt::format("class {} is out of range", which),
                    .expected = fmt::format("0 to {}", classes - 1)});
    }
    for (std::int64_t c = 0; c < classes; ++c) {
      rows[i * classes + c] = c == which ? 1 : 0;
    }
  }
}

void one_hot_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
}

const Op& one_hot_op = register_op<OneHotArgs>({
    .schema = "one_hot(x)",
    .infer = one_hot_infer,
    .cpu = in_workspace<one_hot_cpu>,
    .workspace = workspace_of<one_hot_cpu>,
    .rule = one_hot_rule,
    .about = "1 at the class of each element, 0 elsewhere (i64).",
});

}  // namespace

Tensor one_hot(const Tensor& x, std::int64_t num_classes) {
  return call_one(one_hot_op, {x}, OneHotArgs{.num_classes = num_classes});
}

}  // namespace tessera::ops
