// The results of two blocks of keys, merged by their log-sum-exps.
module;
#include "attention/kernels/attention_merge.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "shared/kernels/types.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using rules::strategy;

void infer(const Call& call, ResultShapes& out) {
  const Tensor& y = call.in[0];
  const Tensor& lse = call.in[1];
  check_dims(call, 0, 4);
  check_shape(call, 2, y.shape());
  check_shape(call, 1, {y.size(0), y.size(2), y.size(1)});
  check_shape(call, 3, lse.shape());
  const DType sums = statistics_type(call.in[2].dtype());
  for (const std::size_t i : {0, 1, 3}) {
    check_type(call, i, sums);
  }
  out.push_back({y.shape(), sums});
  out.push_back({lse.shape(), sums});
}

void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor y = contiguous_operand(w, call.in[0]);
  const Tensor lse = contiguous_operand(w, call.in[1]);
  const Tensor other = contiguous_operand(w, call.in[2]);
  const Tensor other_lse = contiguous_operand(w, call.in[3]);
  if (w.counts()) {
    return;
  }
  visit_floating(other.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    kernels::attention_merge(kernels::AttentionMerge<T, C>{.batch = y.size(0),
                                                           .queries = y.size(1),
                                                           .heads = y.size(2),
                                                           .width = y.size(3),
                                                           .y = pointer<C>(y),
                                                           .lse = pointer<C>(lse),
                                                           .other = pointer<T>(other),
                                                           .other_lse = pointer<C>(other_lse),
                                                           .out = pointer<C>(out[0]),
                                                           .out_lse = pointer<C>(out[1])});
  });
}

void rule(const RuleContext&, Strategies& strategies) {
  const auto both = [&](Placement y, Placement lse) {
    strategies.push_back(strategy({y, lse, y, lse}, {y, lse}));
  };
  both(Shard(0), Shard(0));
  both(Shard(1), Shard(2));
  both(Shard(2), Shard(1));
}

const Op& merge_op = register_op({
    .schema = "attention_merge(y, lse, other, other_lse)",
    .infer = infer,
    .cpu = in_workspace<cpu>,
    .workspace = workspace_of_copies<cpu>,
    .rule = rule,
    .same_bits_by_features = true,
    .about = "Two results of attention with different keys, merged by their log-sum-exps.",
});

}  // namespace

AttentionBlock attention_merge(const AttentionBlock& a, const AttentionBlock& b) {
  Tensors out = call(merge_op, {a.y, a.lse, b.y, b.lse});
  return {.y = std::move(out[0]), .lse = std::move(out[1])};
}

}  // namespace tessera::ops
