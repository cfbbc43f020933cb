// Causal attention on [B, T, H, D], which may have a cache of keys in front.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/kernels/attention.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :attention_call;

namespace tessera::ops {
namespace {

using namespace attention;
using rules::strategy;

struct CausalArgs {
  Dynamic<double> scale;
};

constexpr auto no_mask = []<class T>(const Workspace&, T) { return kernels::AttentionMask<T>{}; };

void check_causal(const Call& call, const Tensor& q, const Tensor& k, const Tensor& v) {
  check(call, time_first, q, k, v);
  if (k.shape()[1] < q.shape()[1]) {
    refuse(call, {.wrong = "there are fewer keys than queries",
                  .got = fmt::format("q {}, k {}", to_string(q.shape()), to_string(k.shape()))});
  }
}

void causal_infer(const Call& call, ResultShapes& out) {
  check_causal(call, call.in[0], call.in[1], call.in[2]);
  push_results(time_first, call.in[0], call.in[2], out);
}

void causal_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  forward(call, time_first, call.args<CausalArgs>().scale, Causal::lower_right, out, w, no_mask);
}

void causal_rule(const RuleContext& context, Strategies& strategies) {
  strategies.push_back(strategy({Shard(0), Shard(0), Shard(0)}, {Shard(0), Shard(0)}));
  if (heads_divide(context, time_first, 0)) {
    strategies.push_back(strategy({Shard(2), Shard(2), Shard(2)}, {Shard(2), Shard(1)}));
  }
}

void causal_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out);

const Op& causal_op = register_op<CausalArgs>({
    .schema = "causal_attention(q, k, v)",
    .infer = causal_infer,
    .cpu = in_workspace<causal_cpu>,
    .workspace = workspace_of<causal_cpu>,
    .rule = causal_rule,
    .flops =
        [](const Call& call, std::span<const Tensor>) {
          return pair_flops(time_first, call.in[0], call.in[1], call.in[2], Causal::lower_right, 2);
        },
    .backward = causal_backward,
    .saves_inputs = saves_all,
    .saves_outputs = saves_all,
    .constant_outputs = 0b10,  // the log sums (lse) are kept for backward
    .about = "Causal grouped-query attention, in tiles: scores are never stored.",
});

void causal_grad_infer(const Call& call, ResultShapes& out) {
  check_causal(call, call.in[1], call.in[2], call.in[3]);
  check_gradient(call, time_first);
  for (std::size_t i = 1; i <= 3; ++i) {
    out.push_back({call.in[i].shape(), call.in[i].dtype()});
  }
}

void causal_grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  gradient(call, time_first, call.args<CausalArgs>().scale, Causal::lower_right, out, w, no_mask);
}

void causal_grad_rule(const RuleContext& context, Strategies& strategies) {
  const auto all = [&](Placement heads, Placement of_lse) {
    strategies.push_back(
        strategy({heads, heads, heads, heads, heads, of_lse}, {heads, heads, heads}));
  };
  all(Shard(0), Shard(0));
  if (heads_divide(context, time_first, 1)) {
    all(Shard(2), Shard(1));
  }
  pass_partial(context, strategies, 0b1);
}

void causal_second(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  // Exchanges the two dims, there and back.
  const auto heads_in_front = [](const Tensor& x) { return x ? transpose(x, 1, 2) : x; };
  const Tensor u[] = {heads_in_front(grads[0]), heads_in_front(grads[1]), heads_in_front(grads[2])};
  const GradientsAgain of = differentiate_again({.dy = heads_in_front(context.in[0]),
                                                 .q = heads_in_front(context.in[1]),
                                                 .k = heads_in_front(context.in[2]),
                                                 .v = heads_in_front(context.in[3]),
                                                 .causal = Causal::lower_right,
                                                 .scale = context.args<CausalArgs>().scale},
                                                u);
  const Tensor found[] = {of.dy, of.q, of.k, of.v};
  for (std::size_t i = 0; i < 4; ++i) {
    if (context.needs(i) && found[i]) {
      out[i] = cast(heads_in_front(found[i]), context.in_dtypes[i]);
    }
  }
}

const Op& causal_backward_op = register_op<CausalArgs>({
    .schema = "causal_attention_backward(dy, q, k, v, y, lse)",
    .infer = causal_grad_infer,
    .cpu = in_workspace<causal_grad_cpu>,
    .workspace = workspace_of<causal_grad_cpu>,
    .rule = causal_grad_rule,
    .flops =
        [](const Call& call, std::span<const Tensor>) {
          return pair_flops(time_first, call.in[1], call.in[2], call.in[3], Causal::lower_right, 4);
        },
    .backward = causal_second,
    .saves_inputs = 0b001111,
    .about = "The gradients of causal_attention with respect to q, k and v.",
});

void causal_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  const Tensors d =
      call(causal_backward_op,
           {grads[0], context.in[0], context.in[1], context.in[2], context.out[0], context.out[1]},
           context.attributes);
  for (std::size_t i = 0; i < 3; ++i) {
    if (context.needs(i)) {
      out[i] = d[i];
    }
  }
}

}  // namespace

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  return call_one(causal_op, {q, k, v}, CausalArgs{.scale = scale});
}

}  // namespace tessera::ops
