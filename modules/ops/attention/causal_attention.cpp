// Causal attention on [B, T, H, D], which may have a cache of keys in front.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/functions/rotary.hpp"
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

Scores scores_of(const CausalArgs& arguments, const Tensor& documents = {}) {
  return {.scale = arguments.scale,
          .causal = Causal::lower_right,
          .window = std::min(arguments.window, largest_position),
          .softcap = arguments.softcap,
          .documents = documents};
}

/// `q` and `documents`: the places of these operands.
void check_causal(const Call& call, std::size_t q, std::size_t documents) {
  const Dims& queries = call.in[q].shape();
  check(call, time_first, call.in[q], call.in[q + 1], call.in[q + 2]);
  const Dims& keys = call.in[q + 1].shape();
  const auto arguments = call.args<CausalArgs>();
  if (keys[1] < queries[1]) {
    refuse(call, {.wrong = "there are fewer keys than queries",
                  .got = fmt::format("q {}, k {}", to_string(queries), to_string(keys))});
  }
  check_limits(call, arguments.window, arguments.softcap);
  if (call.in[documents]) {
    check_shape(call, documents, {queries[0], queries[1]});
    check_type(call, documents, DType::i64);
    if (keys[1] != queries[1]) {
      refuse(call, {.wrong = "documents need as many keys as queries",
                    .got = fmt::format("q {}, k {}", to_string(queries), to_string(keys)),
                    .advice = "keys of a cache belong to the only document of a row"});
    }
  }
}

void causal_infer(const Call& call, ResultShapes& out) {
  check_causal(call, 0, 3);
  push_results(time_first, call.in[0], call.in[2], out);
}

void causal_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  forward(call, time_first, scores_of(call.args<CausalArgs>(), call.in[3]), out, w, no_mask);
}

void causal_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out);

const Op& causal_op = register_op<CausalArgs>({
    .schema = "causal_attention(q, k, v, documents?)",
    .infer = causal_infer,
    .cpu = in_workspace<causal_cpu>,
    .workspace = workspace_of<causal_cpu>,
    .rule = time_first_rule,
    .flops =
        [](const Call& call, std::span<const Tensor>) {
          return pair_flops(time_first, call.in[0], call.in[1], call.in[2],
                            scores_of(call.args<CausalArgs>()), 2);
        },
    .backward = causal_backward,
    .saves_inputs = saves_all,
    .saves_outputs = saves_all,
    .constant_outputs = 0b10,  // the log sums (lse) are kept for backward
    .same_bits_by_features = true,
    .about = "Causal grouped-query attention, in tiles: scores are never stored.",
});

void causal_grad_infer(const Call& call, ResultShapes& out) {
  check_causal(call, 1, 6);
  check_gradient(call, time_first);
  push_gradients(call, out);
}

void causal_grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  gradient(call, time_first, scores_of(call.args<CausalArgs>(), call.in[6]), out, w, no_mask);
}

void causal_grad_rule(const RuleContext& context, Strategies& strategies) {
  time_first_gradient_rule(context, strategies, Shard(2));
  pass_partial(context, strategies, 0b1);
}

void causal_second(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  // Exchanges the two dims, there and back.
  const auto heads_in_front = [](const Tensor& x) { return x ? transpose(x, 1, 2) : x; };
  const Tensor u[] = {heads_in_front(grads[0]), heads_in_front(grads[1]), heads_in_front(grads[2])};
  const RecomputedGradients of =
      differentiate_again({.dy = heads_in_front(context.in[0]),
                           .q = heads_in_front(context.in[1]),
                           .k = heads_in_front(context.in[2]),
                           .v = heads_in_front(context.in[3]),
                           .scores = scores_of(context.args<CausalArgs>(), context.in[6])},
                          u);
  const Tensor found[] = {of.dy, of.q, of.k, of.v};
  for (std::size_t i = 0; i < 4; ++i) {
    if (context.needs(i) && found[i]) {
      out[i] = cast(heads_in_front(found[i]), context.in_dtypes[i]);
    }
  }
}

const Op& causal_backward_op = register_op<CausalArgs>({
    .schema = "causal_attention_backward(dy, q, k, v, y, lse, documents?)",
    .infer = causal_grad_infer,
    .cpu = in_workspace<causal_grad_cpu>,
    .workspace = workspace_of<causal_grad_cpu>,
    .rule = causal_grad_rule,
    .flops =
        [](const Call& call, std::span<const Tensor>) {
          return pair_flops(time_first, call.in[1], call.in[2], call.in[3],
                            scores_of(call.args<CausalArgs>()), 4);
        },
    .backward = causal_second,
    .saves_inputs = 0b1001111,
    .same_bits_by_features = true,
    .about = "The gradients of causal_attention with respect to q, k and v.",
});

void causal_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  const Tensors d = call(causal_backward_op,
                         {grads[0], context.in[0], context.in[1], context.in[2], context.out[0],
                          context.out[1], context.in[3]},
                         context.attributes);
  for (std::size_t i = 0; i < 3; ++i) {
    if (context.needs(i)) {
      out[i] = d[i];
    }
  }
}

}  // namespace

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const CausalOptions& options) {
  return call_one(
      causal_op, {q, k, v, options.documents},
      CausalArgs{.scale = options.scale, .window = options.window, .softcap = options.softcap});
}

}  // namespace tessera::ops
