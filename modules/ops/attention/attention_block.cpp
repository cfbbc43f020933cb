// Attention of a block: some queries of a sequence with some of its keys.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "attention/kernels/attention.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :attention_call;

#include "attention/arguments.hpp"

namespace tessera::ops {
namespace {

using namespace attention;

BlockArgs arguments_of(const AttentionBlockOptions& options) {
  return {.scale = options.scale,
          .window = options.window,
          .softcap = options.softcap,
          .is_causal = options.causal,
          .first_query = options.first_query,
          .first_key = options.first_key};
}

Scores scores_of(const BlockArgs& arguments, const Tensor& documents = {}) {
  return {.scale = arguments.scale,
          .causal = arguments.is_causal ? Causal::lower_right : Causal::none,
          .window = std::min(arguments.window, largest_position),
          .softcap = arguments.softcap,
          .documents = documents,
          .is_block = true,
          .first_query = arguments.first_query,
          .first_key = arguments.first_key};
}

/// `q` and `documents`: the places of these operands.
void check_block(const Call& call, std::size_t q, std::size_t documents) {
  const Dims& queries = call.in[q].shape();
  check(call, time_first, call.in[q], call.in[q + 1], call.in[q + 2]);
  const auto arguments = call.args<BlockArgs>();
  check_limits(call, arguments.window, arguments.softcap);
  for (const std::int64_t position : {arguments.first_query, arguments.first_key}) {
    if (position < 0 || position > largest_position) {
      refuse(call, {.wrong = fmt::format("positions must be from 0 to {}", largest_position),
                    .got = fmt::format("{}, {}", arguments.first_query, arguments.first_key)});
    }
  }
  if (!arguments.is_causal && (arguments.window != 0 || call.in[documents])) {
    refuse(call, {.wrong = "a window and documents need causal attention"});
  }
  if (call.in[documents]) {
    check_shape(call, documents, {queries[0], queries[1]});
    check_type(call, documents, DType::i64);
  }
}

void block_infer(const Call& call, ResultShapes& out) {
  check_block(call, 0, 3);
  push_results(time_first, call.in[0], call.in[2], out);
}

void block_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  forward(call, time_first, scores_of(call.args<BlockArgs>(), call.in[3]), out, w, no_mask);
}

const Op& block_op = register_op<BlockArgs>({
    .schema = "attention_block(q, k, v, documents?)",
    .infer = block_infer,
    .cpu = in_workspace<block_cpu>,
    .workspace = workspace_of<block_cpu>,
    .rule = time_first_rule,
    .flops =
        [](const Call& call, std::span<const Tensor>) {
          return pair_flops(time_first, call.in[0], call.in[1], call.in[2],
                            scores_of(call.args<BlockArgs>()), 2);
        },
    .same_bits_by_features = true,
    .about = "Attention of some queries of a sequence with some of its keys, and the log-sum-exps "
             "by which such results are merged.",
});

void block_grad_infer(const Call& call, ResultShapes& out) {
  check_block(call, 1, 6);
  check_gradient(call, time_first, true);
  push_gradients(call, out);
}

void block_grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  gradient(call, time_first, scores_of(call.args<BlockArgs>(), call.in[6]), out, w, no_mask);
}

void block_grad_rule(const RuleContext& context, Strategies& strategies) {
  time_first_gradient_rule(context, strategies, Shard(1));
}

const Op& block_backward_op = register_op<BlockArgs>({
    .schema = "attention_block_backward(dy, q, k, v, delta, lse, documents?)",
    .infer = block_grad_infer,
    .cpu = in_workspace<block_grad_cpu>,
    .workspace = workspace_of<block_grad_cpu>,
    .rule = block_grad_rule,
    .flops =
        [](const Call& call, std::span<const Tensor>) {
          return pair_flops(time_first, call.in[1], call.in[2], call.in[3],
                            scores_of(call.args<BlockArgs>()), 4);
        },
    .same_bits_by_features = true,
    .about = "What a block adds to the gradients of q, k and v, from the log-sum-exps of all keys.",
});

}  // namespace

AttentionBlock attention_block(const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttentionBlockOptions& options) {
  Tensors out = call(block_op, {q, k, v, options.documents}, arguments_of(options));
  return {.y = std::move(out[0]), .lse = std::move(out[1])};
}

AttentionBlockGradients attention_block_backward(const Tensor& dy, const Tensor& q, const Tensor& k,
                                                 const Tensor& v, const Tensor& delta,
                                                 const Tensor& lse,
                                                 const AttentionBlockOptions& options) {
  Tensors out =
      call(block_backward_op, {dy, q, k, v, delta, lse, options.documents}, arguments_of(options));
  return {.q = std::move(out[0]), .k = std::move(out[1]), .v = std::move(out[2])};
}

}  // namespace tessera::ops
