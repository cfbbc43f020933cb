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

namespace tessera::ops {
namespace {

using namespace attention;
using rules::strategy;

/// The attributes of the operator and of its gradient; the local call of a sharded one also learns
/// which scores it has, for the random numbers.
struct Settings {
  bool causal = false;
  bool mask_gradient = false;  // of the gradient's call only
  std::int64_t first_batch = 0;
  std::int64_t first_head = 0;
  std::int64_t heads = 0;  // in all
  std::int64_t first_query = 0;
  std::int64_t queries = 0;  // in all
  double scale = 0;
  double p = 0;
  kernels::RandomRange random;
};

/// `q`: the operand's place, 0, or 1 behind the gradient.
Settings read_settings(const Call& call, std::size_t q) {
  AttributeReader read = call.read();
  Settings s;
  s.causal = read.flag();
  s.mask_gradient = q == 1 && read.flag();
  if (call.attributes.fixed().size() > q + 1) {
    s.first_batch = read.integer();
    s.first_head = read.integer();
    s.heads = read.integer();
    s.first_query = read.integer();
    s.queries = read.integer();
  } else {
    s.heads = call.in[q].shape()[1];
    s.queries = call.in[q].shape()[2];
  }
  s.scale = read.scalar();
  s.p = read.scalar();
  s.random = read_range(read);
  return s;
}

Attributes localize(const LocalContext& context, std::size_t q) {
  Attributes local = context.call.attributes;
  const Dims first = local_offset(*context.in[q]);
  const Dims& whole = context.in[q]->shape;
  return local.add(first[0]).add(first[1]).add(whole[1]).add(first[2]).add(whole[2]);
}

Dims scores_shape(const Tensor& q, const Tensor& k) {
  return {q.shape()[0], q.shape()[1], q.shape()[2], k.shape()[2]};
}

void check_masked(const Call& call, std::size_t q, const Tensor& mask) {
  check(call, heads_first, call.in[q], call.in[q + 1], call.in[q + 2]);
  const Settings s = read_settings(call, q);
  const Dims scores = scores_shape(call.in[q], call.in[q + 1]);
  if (s.causal && scores[2] != scores[3]) {
    refuse(call, fmt::format("is_causal needs as many keys as queries (got {} and {}); use a mask, "
                             "or causal_attention() for a cache of keys",
                             scores[3], scores[2]));
  }
  if (!(s.p >= 0 && s.p <= 1)) {
    refuse(call,
           fmt::format("dropout_p is a probability (expected 0 to 1, got {})", printable(s.p)));
  }
  if (mask) {
    operands::check_broadcasts_to(call.op.name, mask.shape(), scores);
    if (mask.dtype() != DType::boolean && mask.dtype() != call.in[q].dtype()) {
      refuse(call, fmt::format("the mask is bool or of q's type (expected {}, got {}); cast it",
                               name_of(call.in[q].dtype()), name_of(mask.dtype())));
    }
  }
}

/// Gives the masks of a call in the kernel's terms; `scores`: the shape of all that are here.
auto masks(const Settings& s, const Tensor& mask, const Dims& scores, const Tensor& gradient) {
  return [&s, mask, scores, gradient]<class T>(T) {
    kernels::AttentionMask<T> m;
    if (mask) {
      const Dims strides = operands::broadcast_strides(mask, scores);
      for (int d = 0; d < 4; ++d) {
        m.strides[d] = strides[d];
      }
      if (mask.dtype() == DType::boolean) {
        m.allowed = pointer<std::uint8_t>(mask);
      } else {
        m.added = pointer<T>(mask);
      }
    }
    m.dropout = s.p;
    m.random = s.random;
    m.first_batch = s.first_batch;
    m.first_head = s.first_head;
    m.heads_in_all = s.heads;
    m.first_query = s.first_query;
    m.queries_in_all = s.queries;
    m.gradient = pointer<T>(gradient);
    return m;
  };
}

void masked_infer(const Call& call, ResultShapes& out) {
  check_masked(call, 0, call.in[3]);
  push_results(heads_first, call.in[0], out);
}

void masked_cpu(const Call& call, std::span<Tensor> out) {
  const Settings s = read_settings(call, 0);
  forward(call, heads_first, s.scale, s.causal, out,
          masks(s, call.in[3], scores_shape(call.in[0], call.in[1]), {}));
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
  if (!context.call.read().flag()) {  // each query looks at all keys
    strategies.push_back(strategy(
        {Shard(2), Replicate(), Replicate(), mask_shard(in[3], scores, 2)}, {Shard(2), Shard(2)}));
  }
}

void masked_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out);

const Op& masked_op = register_op({
    .schema = "scaled_dot_product_attention(q, k, v, mask?; is_causal: bool, scale: float, "
              "dropout_p: float, seed: free, stream: free, offset: free, run: free, stride: free)",
    .infer = masked_infer,
    .cpu = masked_cpu,
    .rule = masked_rule,
    .localize = [](const LocalContext& context) { return localize(context, 0); },
    .backward = masked_backward,
    .saves_inputs = saves_all,
    .saves_outputs = saves_all,
    .about = "Attention with bool or added masks and dropout, in tiles: scores are never stored.",
});

void masked_grad_infer(const Call& call, ResultShapes& out) {
  check_masked(call, 1, call.in[6]);
  check_gradient(call, heads_first);
  for (std::size_t i = 1; i <= 3; ++i) {
    out.push_back({call.in[i].shape(), call.in[i].dtype()});
  }
  if (read_settings(call, 1).mask_gradient) {
    out.push_back({scores_shape(call.in[1], call.in[2]), call.in[1].dtype()});
  }
}

void masked_grad_cpu(const Call& call, std::span<Tensor> out) {
  const Settings s = read_settings(call, 1);
  if (s.mask_gradient) {
    clear(out[3]);
  }
  gradient(call, heads_first, s.scale, s.causal, out,
           masks(s, call.in[6], scores_shape(call.in[1], call.in[2]),
                 s.mask_gradient ? out[3] : Tensor()));
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
  if (!context.call.read().flag()) {
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
  AttributeReader read = context.read();
  GradientCall again{.dy = context.in[0],
                     .q = context.in[1],
                     .k = context.in[2],
                     .v = context.in[3],
                     .mask = context.in[6]};
  again.causal = read.flag();
  again.scale = read.scalar();
  const double p = read.scalar();
  if (p > 0) {
    again.dropout.scalar(p);
    for (int i = 0; i < 5; ++i) {  // as add_numbers() has them: a score has the number of its place
      again.dropout.free_integer(read.free_integer());
    }
  }
  const GradientsAgain of = differentiate_again(again, grads);
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

const Op& masked_backward_op = register_op({
    .schema = "scaled_dot_product_attention_backward(dy, q, k, v, y, lse, mask?; is_causal: bool, "
              "mask_gradient: bool, scale: float, dropout_p: float, seed: free, stream: free, "
              "offset: free, run: free, stride: free)",
    .infer = masked_grad_infer,
    .cpu = masked_grad_cpu,
    .rule = masked_grad_rule,
    .localize = [](const LocalContext& context) { return localize(context, 1); },
    .backward = masked_second,
    .saves_inputs = 0b1001111,
    .about = "The gradients of scaled_dot_product_attention with respect to q, k, v and, where "
             "asked for, all scores.",
});

void masked_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  if (!grads[0]) {
    return;  // only y is differentiable: the log sums (lse) are kept for backward
  }
  Attributes attributes;
  attributes.add(context.read().flag()).add(context.needs(3)).take_dynamic(context.attributes);
  const Tensors d = call(masked_backward_op,
                         {grads[0], context.in[0], context.in[1], context.in[2], context.out[0],
                          context.out[1], context.in[3]},
                         attributes);
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
                                    const Tensor& mask, double dropout_p, bool is_causal,
                                    double scale, const RandomSource& source) {
  operands::given("scaled_dot_product_attention", "q", q);
  operands::given("scaled_dot_product_attention", "k", k);
  RandomNumbers numbers;
  if (dropout_p > 0 && q.dims() == 4 && k.dims() == 4) {
    checked_product(scores_shape(q, k), "scaled_dot_product_attention");
    numbers = source.take("scaled_dot_product_attention", scores_shape(q, k));
  }
  Attributes attributes;
  attributes.add(is_causal).scalar(scale).scalar(dropout_p);
  add_numbers(attributes, numbers);
  return call_one(masked_op, {q, k, v, mask}, attributes);
}

}  // namespace tessera::ops
