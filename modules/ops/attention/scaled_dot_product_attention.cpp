// Attention on [B, H, T, D] with masks and dropout, as PyTorch's scaled_dot_product_attention.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <tessera/printable.hpp>

#include "attention/kernels/attention.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :attention_call;
import :random_call;

namespace tessera::ops {
namespace {

using namespace attention;
using rules::strategy;

struct MaskedArgs {
  bool is_causal;
  bool lower_right;  // of a causal one
  Dynamic<double> scale;
  Dynamic<double> dropout_p;
  Dynamic<RandomNumbers> numbers;
  SpecArgument whole{};  // of a local call: the Spec of the q that its q is part of
};

struct MaskedBackwardArgs {
  bool is_causal;
  bool lower_right;  // of a causal one
  bool mask_gradient;
  Dynamic<double> scale;
  Dynamic<double> dropout_p;
  Dynamic<RandomNumbers> numbers;
  SpecArgument whole{};
};

Dims scores_shape(const Tensor& q, const Tensor& k) {
  return {q.shape()[0], q.shape()[1], q.shape()[2], k.shape()[2]};
}

/// `q`: the operand's place, 0, or 1 after the gradient.
void check_masked(const Call& call, std::size_t q, const Tensor& mask, double p) {
  check(call, heads_first, call.in[q], call.in[q + 1], call.in[q + 2]);
  const Dims scores = scores_shape(call.in[q], call.in[q + 1]);
  if (!(p >= 0 && p <= 1)) {
    refuse(call, {.wrong = "dropout_p must be a probability",
                  .expected = "0 to 1",
                  .got = fmt::format("{}", printable(p))});
  }
  if (mask) {
    operands::check_broadcasts_to(call.op.name, mask.shape(), scores);
    if (mask.dtype() != DType::boolean && mask.dtype() != call.in[q].dtype()) {
      refuse(call, {.wrong = "the mask has the wrong type",
                    .expected = fmt::format("bool or {}", name_of(call.in[q].dtype())),
                    .got = std::string(name_of(mask.dtype())),
                    .advice = "cast it"});
    }
  }
}

template <class A>
Scores scores_of(const A& arguments) {
  const Causal causal = arguments.lower_right ? Causal::lower_right : Causal::upper_left;
  return {.scale = arguments.scale, .causal = arguments.is_causal ? causal : Causal::none};
}

/// Gives the masks of a call in the kernel's terms; `scores`: the shape of all that are here. The
/// local call of a sharded one knows from q's Spec which scores it has, for the random numbers.
template <class A>
auto masks(const A& arguments, const Tensor& mask, const Dims& scores, const Tensor& gradient) {
  return [&arguments, mask, scores, gradient]<class T>(const Workspace& w, T) {
    kernels::AttentionMask<T> m;
    m.present = mask.defined();
    if (mask) {
      const Dims strides = operands::broadcast_strides(mask, scores);
      for (int d = 0; d < 4; ++d) {
        m.strides[d] = strides[d];
      }
      if (mask.dtype() == DType::boolean) {
        m.allowed = pointer<std::uint8_t>(w, mask);
      } else {
        m.added = pointer<T>(w, mask);
      }
    }
    m.dropout = arguments.dropout_p;
    m.random = random_numbers::range_of(arguments.numbers);
    m.heads_in_all = scores[1];
    m.queries_in_all = scores[2];
    if (const SpecArgument q = arguments.whole) {
      const Dims first = local_offset(*q);
      m.first_batch = first[0];
      m.first_head = first[1];
      m.heads_in_all = q->shape[1];
      m.first_query = first[2];
      m.queries_in_all = q->shape[2];
    }
    m.gradient = pointer<T>(w, gradient);
    return m;
  };
}

void masked_infer(const Call& call, ResultShapes& out) {
  const auto arguments = call.args<MaskedArgs>();
  check_masked(call, 0, call.in[3], arguments.dropout_p);
  push_results(heads_first, call.in[0], call.in[2], out);
}

void masked_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto arguments = call.args<MaskedArgs>();
  forward(call, heads_first, scores_of(arguments), out, w,
          masks(arguments, call.in[3], scores_shape(call.in[0], call.in[1]), {}));
}

/// The mask's dim that is `dim` of the scores; -1 where it repeats along it.
int mask_dim(const Tensor& mask, const Dims& scores, int dim) {
  const int own = mask ? dim - (4 - mask.dims()) : -1;
  return own >= 0 && mask.shape()[own] == scores[dim] ? own : -1;
}

/// The mask's placement when the scores are sharded along `dim`.
Placement mask_shard(const Tensor& mask, const Dims& scores, int dim) {
  const int own = mask_dim(mask, scores, dim);
  return own >= 0 ? Shard(own) : Replicate();
}

void masked_rule(const RuleContext& context, Strategies& strategies) {
  const auto in = context.call.in;
  const Dims scores = scores_shape(in[0], in[1]);
  for (const int d : {0, 1}) {
    if (d == 0 || heads_divide(context, heads_first, 0, mask_dim(in[3], scores, 1))) {
      strategies.push_back(strategy({Shard(d), Shard(d), Shard(d), mask_shard(in[3], scores, d)},
                                    {Shard(d), Shard(d)}));
    }
  }
  if (!context.call.args<MaskedArgs>().is_causal) {  // each query looks at all keys
    strategies.push_back(strategy(
        {Shard(2), Replicate(), Replicate(), mask_shard(in[3], scores, 2)}, {Shard(2), Shard(2)}));
  }
}

void masked_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out);

const Op& masked_op = register_op<MaskedArgs>({
    .schema = "scaled_dot_product_attention(q, k, v, mask?)",
    .infer = masked_infer,
    .cpu = in_workspace<masked_cpu>,
    .workspace = workspace_of<masked_cpu>,
    .rule = masked_rule,
    .localize =
        [](const LocalContext& context) { return with_whole<MaskedArgs>(context, context.in[0]); },
    .flops =
        [](const Call& call, std::span<const Tensor>) {
          return pair_flops(heads_first, call.in[0], call.in[1], call.in[2],
                            scores_of(call.args<MaskedArgs>()), 2);
        },
    .backward = masked_backward,
    .saves_inputs = saves_all,
    .saves_outputs = saves_all,
    .constant_outputs = 0b10,  // the log sums (lse) are kept for backward
    .same_bits_by_features = true,
    .about = "Attention with bool or added masks and dropout, in tiles: scores are never stored.",
});

void masked_grad_infer(const Call& call, ResultShapes& out) {
  const auto arguments = call.args<MaskedBackwardArgs>();
  check_masked(call, 1, call.in[6], arguments.dropout_p);
  check_gradient(call, heads_first);
  push_gradients(call, out);
  if (arguments.mask_gradient) {
    out.push_back({scores_shape(call.in[1], call.in[2]), call.in[1].dtype()});
  }
}

void masked_grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto arguments = call.args<MaskedBackwardArgs>();
  if (arguments.mask_gradient && !w.counts()) {
    clear(out[3]);
  }
  gradient(call, heads_first, scores_of(arguments), out, w,
           masks(arguments, call.in[6], scores_shape(call.in[1], call.in[2]),
                 arguments.mask_gradient ? out[3] : Tensor()));
}

void masked_grad_rule(const RuleContext& context, Strategies& strategies) {
  const auto in = context.call.in;
  const Dims scores = scores_shape(in[1], in[2]);
  for (const int d : {0, 1}) {
    if (d == 0 || heads_divide(context, heads_first, 1, mask_dim(in[6], scores, 1))) {
      Strategy s;
      for (std::size_t i = 0; i < 6; ++i) {
        s.in.push_back(Shard(d));
      }
      s.in.push_back(mask_shard(in[6], scores, d));
      for (std::size_t i = 0; i < context.out.size(); ++i) {
        s.out.push_back(Shard(d));
      }
      strategies.push_back(s);
    }
  }
  if (!context.call.args<MaskedBackwardArgs>().is_causal) {
    const Placement mask = mask_shard(in[6], scores, 2);
    Strategy s;
    s.in = {Shard(2), Shard(2), Replicate(), Replicate(), Shard(2), Shard(2), mask};
    s.out = {Shard(2), Partial(), Partial()};
    if (context.out.size() > 3) {
      s.out.push_back(Shard(2));
    }
    strategies.push_back(s);
  }
  pass_partial(context, strategies, 0b1);
}

void masked_second(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  const auto arguments = context.args<MaskedBackwardArgs>();
  const RecomputedGradients of = differentiate_again({.dy = context.in[0],
                                                      .q = context.in[1],
                                                      .k = context.in[2],
                                                      .v = context.in[3],
                                                      .mask = context.in[6],
                                                      .scores = scores_of(arguments),
                                                      .dropout_p = arguments.dropout_p,
                                                      .numbers = arguments.numbers},
                                                     grads);
  const Tensor found[] = {of.dy, of.q, of.k, of.v};
  for (std::size_t i = 0; i < 4; ++i) {
    if (context.needs(i) && found[i]) {
      out[i] = cast(found[i], context.in_dtypes[i]);
    }
  }
  if (context.needs(6) && of.mask) {
    out[6] = cast(operands::sum_to(of.mask, context.in_shapes[6]), context.in_dtypes[6]);
  }
}

const Op& masked_backward_op = register_op<MaskedBackwardArgs>({
    .schema = "scaled_dot_product_attention_backward(dy, q, k, v, y, lse, mask?)",
    .infer = masked_grad_infer,
    .cpu = in_workspace<masked_grad_cpu>,
    .workspace = workspace_of<masked_grad_cpu>,
    .rule = masked_grad_rule,
    .localize =
        [](const LocalContext& context) {
          return with_whole<MaskedBackwardArgs>(context, context.in[1]);
        },
    .flops =
        [](const Call& call, std::span<const Tensor>) {
          return pair_flops(heads_first, call.in[1], call.in[2], call.in[3],
                            scores_of(call.args<MaskedBackwardArgs>()), 4);
        },
    .backward = masked_second,
    .saves_inputs = 0b1001111,
    .same_bits_by_features = true,
    .about = "The gradients of scaled_dot_product_attention with respect to q, k, v and, on "
             "request, all scores.",
});

void masked_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  const auto arguments = context.args<MaskedArgs>();
  const Tensors d = call(masked_backward_op,
                         {grads[0], context.in[0], context.in[1], context.in[2], context.out[0],
                          context.out[1], context.in[3]},
                         MaskedBackwardArgs{.is_causal = arguments.is_causal,
                                            .lower_right = arguments.lower_right,
                                            .mask_gradient = context.needs(3),
                                            .scale = arguments.scale,
                                            .dropout_p = arguments.dropout_p,
                                            .numbers = arguments.numbers});
  for (std::size_t i = 0; i < 3; ++i) {
    if (context.needs(i)) {
      out[i] = d[i];
    }
  }
  if (context.needs(3)) {
    out[3] = operands::sum_to(d[3], context.in_shapes[3]);
  }
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& mask, double dropout_p, Causal causal,
                                    double scale, const RandomSource& source) {
  operands::given("scaled_dot_product_attention", "q", q);
  operands::given("scaled_dot_product_attention", "k", k);
  RandomNumbers numbers;
  if (dropout_p > 0 && q.dims() == 4 && k.dims() == 4) {
    checked_product(scores_shape(q, k), "scaled_dot_product_attention");
    numbers = source.take("scaled_dot_product_attention", scores_shape(q, k));
  }
  return call_one(masked_op, {q, k, v, mask},
                  MaskedArgs{.is_causal = causal != Causal::none,
                             .lower_right = causal == Causal::lower_right,
                             .scale = scale,
                             .dropout_p = dropout_p,
                             .numbers = numbers});
}

}  // namespace tessera::ops
