// Elements added at indices along a dim: scatter_add.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :index_call;

namespace tessera::ops {
namespace {

using namespace indexing;
using rules::strategy;

void scatter_add_infer(const Call& call, ResultShapes& out) {
  const int dim = dim_of(call, call.in[0]);
  check_index(call, call.in[0], call.in[1], dim);
  check_source(call);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void scatter_add_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const int dim = dim_of(call, call.in[0]);
  if (!w.counts()) {
    copy_into(out[0], call.in[0]);
  }
  add_scattered(w, call, out[0], call.in[1], reached_source(w, call, dim), dim);
}

void scatter_add_rule(const RuleContext& context, Strategies& strategies) {
  const int dim = dim_of(context.call, context.call.in[0]);
  const Dims& source = context.call.in[2].shape();
  for_each_alike(context.call.in[0].shape(), context.call.in[1].shape(), dim, [&](int d) {
    if (source[d] == context.call.in[1].shape()[d]) {
      rules::same_dim(context, strategies, d);
    }
  });
  if (source[dim] == context.call.in[1].shape()[dim]) {
    strategies.push_back(strategy({Partial(), Shard(dim), Shard(dim)}, {Partial()}));
  }
  pass_partial(context, strategies, 0b101);
}

void scatter_add_backward(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out);

const Op& scatter_add_op = register_op<DimArgs>({
    .schema = "scatter_add(x, index, source)",
    .infer = scatter_add_infer,
    .cpu = in_workspace<scatter_add_cpu>,
    .workspace = workspace_of<scatter_add_cpu>,
    .rule = scatter_add_rule,
    .backward = scatter_add_backward,
    .saves_inputs = 0b010,
    .about = "x with the elements of source added at the indices along a dim.",
});

void scatter_add_backward(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out) {
  out[0] = grads[0];
  if (context.needs(2)) {
    if (context.in_shapes[2] != context.in[1].shape()) {
      fail({.thing = "scatter_add",
            .wrong =
                fmt::format("a source {} that is larger than its index {} cannot have a gradient",
                            to_string(context.in_shapes[2]), to_string(context.in[1].shape())),
            .advice = "narrow it first"});
    }
    out[2] = gather(grads[0], context.in[1], context.args<DimArgs>().dim);
  }
}

}  // namespace

Tensor scatter_add(const Tensor& x, const Tensor& index, const Tensor& source, std::int64_t dim) {
  return call_one(scatter_add_op, {x, index, source}, DimArgs{.dim = dim});
}

}  // namespace tessera::ops
