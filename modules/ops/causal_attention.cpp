module;
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/attention.hpp"
#include "kernels/types.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using kernels::AttentionStrides;
using rules::strategy;

void check(const Call& call, const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto shapes = [&] {
    return fmt::format("q {}, k {}, v {}", to_string(q.shape()), to_string(k.shape()),
                       to_string(v.shape()));
  };
  if (q.dims() != 4 || k.dims() != 4 || k.shape() != v.shape() || q.shape()[0] != k.shape()[0] ||
      q.shape()[3] != k.shape()[3]) {
    refuse(call, fmt::format("the shapes do not fit (expected q [B, Tq, H, D] and k, v "
                             "[B, Tk, KV, D], got {})",
                             shapes()));
  }
  if (k.shape()[2] == 0 ? q.shape()[2] != 0 : q.shape()[2] % k.shape()[2] != 0) {
    refuse(call, fmt::format("the heads of q must be a multiple of the heads of k and v (got {})",
                             shapes()));
  }
  if (k.shape()[1] < q.shape()[1]) {
    refuse(call, fmt::format("there are fewer keys than queries (got {})", shapes()));
  }
  if (k.dtype() != q.dtype() || v.dtype() != q.dtype()) {
    refuse(call, fmt::format("q, k and v have different types ({}, {}, {}); cast",
                             name_of(q.dtype()), name_of(k.dtype()), name_of(v.dtype())));
  }
}

kernels::AttentionShape shape_of(const Call& call, const Tensor& q, const Tensor& k) {
  kernels::AttentionShape shape;
  shape.batch = q.shape()[0];
  shape.queries = q.shape()[1];
  shape.keys = k.shape()[1];
  shape.kv_heads = k.shape()[2];
  shape.group = shape.kv_heads == 0 ? 1 : q.shape()[2] / shape.kv_heads;
  shape.head_dim = q.shape()[3];
  const double scale = call.read().scalar();
  shape.scale = scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  return shape;
}

/// The operand as the kernel takes it: any strides, but the last dim in one piece.
Tensor rows_of_heads(const Tensor& x) {
  return x.strides()[3] == 1 || x.shape()[3] == 1 ? x : contiguous_operand(x);
}

AttentionStrides strides_of(const Tensor& x) {
  return {x.strides()[0], x.strides()[1], x.strides()[2]};
}

void infer(const Call& call, ResultShapes& out) {
  const Tensor& q = call.in[0];
  check(call, q, call.in[1], call.in[2]);
  out.push_back({q.shape(), q.dtype()});
  // Logarithms of the sums of exponentials, which the backward begins with.
  out.push_back({Dims{q.shape()[0], q.shape()[2], q.shape()[1]}, statistics_type(q.dtype())});
}

void cpu(const Call& call, std::span<Tensor> out) {
  if (out[0].numel() == 0) {
    return;
  }
  const Tensor q = rows_of_heads(call.in[0]);
  const Tensor k = rows_of_heads(call.in[1]);
  const Tensor v = rows_of_heads(call.in[2]);
  visit_floating(q.dtype(), call.op.name, [&]<class T>(T) {
    kernels::attention_forward(shape_of(call, q, k), pointer<T>(q), strides_of(q), pointer<T>(k),
                               strides_of(k), pointer<T>(v), strides_of(v), pointer<T>(out[0]),
                               strides_of(out[0]), pointer<kernels::Compute<T>>(out[1]));
  });
}

/// Whether each rank gets whole groups of query heads with their key/value head.
bool heads_divide(const RuleContext& context, std::size_t q, std::size_t k) {
  const std::int64_t ways = context.shards_of(q, 2);
  return context.call.in[q].shape()[2] % ways == 0 && context.call.in[k].shape()[2] % ways == 0;
}

void rule(const RuleContext& context, Strategies& strategies) {
  strategies.push_back(strategy({Shard(0), Shard(0), Shard(0)}, {Shard(0), Shard(0)}));
  if (heads_divide(context, 0, 1)) {
    strategies.push_back(strategy({Shard(2), Shard(2), Shard(2)}, {Shard(2), Shard(1)}));
  }
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);

const Op& attention_op = register_op({
    .schema = "causal_attention(q, k, v; scale: float)",
    .infer = infer,
    .cpu = cpu,
    .rule = rule,
    .backward = backward,
    .saves_inputs = saves_all,
    .saves_outputs = saves_all,
    .about = "Causal grouped-query attention, in tiles: scores are never stored.",
});

void grad_infer(const Call& call, ResultShapes& out) {
  const Tensor& q = call.in[1];
  check(call, q, call.in[2], call.in[3]);
  check_shape(call, 0, q.shape());
  check_type(call, 0, q.dtype());
  check_shape(call, 4, q.shape());
  check_shape(call, 5, {q.shape()[0], q.shape()[2], q.shape()[1]});
  for (std::size_t i = 1; i <= 3; ++i) {
    out.push_back({call.in[i].shape(), call.in[i].dtype()});
  }
}

void grad_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor dy = rows_of_heads(call.in[0]);
  const Tensor q = rows_of_heads(call.in[1]);
  const Tensor k = rows_of_heads(call.in[2]);
  const Tensor v = rows_of_heads(call.in[3]);
  const Tensor y = rows_of_heads(call.in[4]);
  const Tensor lse = contiguous_operand(call.in[5]);
  visit_floating(q.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    const kernels::AttentionGradient<T, C> arguments{
        .q = pointer<T>(q),
        .q_strides = strides_of(q),
        .k = pointer<T>(k),
        .k_strides = strides_of(k),
        .v = pointer<T>(v),
        .v_strides = strides_of(v),
        .out = pointer<T>(y),
        .out_strides = strides_of(y),
        .log_sum_exp = pointer<C>(lse),
        .dout = pointer<T>(dy),
        .dout_strides = strides_of(dy),
        .dq = pointer<T>(out[0]),
        .dq_strides = strides_of(out[0]),
        .dk = pointer<T>(out[1]),
        .dk_strides = strides_of(out[1]),
        .dv = pointer<T>(out[2]),
        .dv_strides = strides_of(out[2]),
    };
    kernels::attention_backward(shape_of(call, q, k), arguments);
  });
}

void grad_rule(const RuleContext& context, Strategies& strategies) {
  const auto all = [&](Placement heads, Placement of_lse) {
    strategies.push_back(
        strategy({heads, heads, heads, heads, heads, of_lse}, {heads, heads, heads}));
  };
  all(Shard(0), Shard(0));
  if (heads_divide(context, 1, 2)) {
    all(Shard(2), Shard(1));
  }
  pass_partial(context, strategies, 0b1);
}

const Op& attention_backward_op = register_op({
    .schema = "causal_attention_backward(dy, q, k, v, y, lse; scale: float)",
    .infer = grad_infer,
    .cpu = grad_cpu,
    .rule = grad_rule,
    .about = "The gradients of causal_attention with respect to q, k and v.",
});

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const Tensors d =
      call(attention_backward_op,
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
  return call_one(attention_op, {q, k, v}, Attributes().scalar(scale));
}

}  // namespace tessera::ops
