// Attention with a further score for each head, whose share of the probabilities is dropped.
// Shapes: B rows, T tokens, H heads, D features of keys, Dv of values.
module;
#include <cstdint>
#include <span>
#include <utility>
module tessera.nn;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;

namespace tessera::nn {
namespace {

DType sums_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// The sinks beside log-sum-exps (B, H, T), in their type.
Tensor beside_sums(const Tensor& sinks, const Tensor& lse) {
  return ops::view(ops::cast(sinks, lse.dtype()), {1, sinks.size(0), 1});
}

/// log(exp(lse) + exp(sink)), (B, H, T).
Tensor sums_with(const Tensor& lse, const Tensor& sink) {
  const Tensor distance = ops::mul_scalar(ops::abs(ops::sub(lse, sink)), -1);
  return ops::add(ops::maximum(lse, sink), ops::log1p(ops::exp(distance)));
}

/// (B, H, T) -> (B, T, H, 1).
Tensor of_features(const Tensor& sums) { return ops::unsqueeze(ops::transpose(sums, 1, 2), 3); }

constexpr const char* function_name = "attention_with_sinks";

/// Of a rank's own heads.
Tensor local_attention(std::span<const Tensor> in, const ops::CausalOptions& options) {
  const Tensors inputs{in[0], in[1], in[2], in[3]};
  const ops::AttentionBlockOptions block{.scale = options.scale,
                                         .window = options.window,
                                         .softcap = options.softcap,
                                         .first_query = in[1].size(1) - in[0].size(1),
                                         .documents = in[4]};
  Tensor y;
  Tensor lse;  // with the sinks
  {
    const NoGrad no_grad;
    const ops::AttentionBlock found =
        ops::attention_block(detached(in[0]), detached(in[1]), detached(in[2]), block);
    y = with_sinks(found, detached(in[3]), in[0].dtype());
    lse = sums_with(found.lse, beside_sums(detached(in[3]), found.lse));
  }
  record_function(
      function_name, inputs, {&y, 1},
      [q = SavedTensor(detached(in[0])), k = SavedTensor(detached(in[1])),
       v = SavedTensor(detached(in[2])), sinks = SavedTensor(detached(in[3])),
       documents = SavedTensor(in[4]), saved_y = SavedTensor(detached(y)),
       saved_lse = SavedTensor(lse), block](std::span<const Tensor> grads, std::span<Tensor> out) {
        const Tensor& sums = saved_lse.get(function_name);
        const Tensor& sink = sinks.get(function_name);
        const DType wide = sums.dtype();
        const Tensor products = ops::sum(
            ops::mul(ops::cast(grads[0], wide), ops::cast(saved_y.get(function_name), wide)),
            {3});                                                              // (B, T, H)
        const Tensor delta = ops::contiguous(ops::transpose(products, 1, 2));  // (B, H, T)
        ops::AttentionBlockOptions same = block;
        same.documents = documents.get(function_name);
        const ops::AttentionBlockGradients of =
            ops::attention_block_backward(grads[0], q.get(function_name), k.get(function_name),
                                          v.get(function_name), delta, sums, same);
        out[0] = of.q;
        out[1] = of.k;
        out[2] = of.v;
        // A sink's value is 0: its score's gradient is -p delta.
        const Tensor shares = ops::exp(ops::sub(beside_sums(sink, sums), sums));  // (B, H, T)
        out[3] =
            ops::cast(ops::mul_scalar(ops::sum(ops::mul(shares, delta), {0, 2}), -1), sink.dtype());
      });
  return y;
}

/// The layout of one value for each head, of queries [B, T, H, D] in this one.
Layout of_heads(const Layout& queries, bool gradient) {
  Layout layout = Layout::replicated(queries.mesh());
  for (int axis = 0; gradient && axis < queries.ndim(); ++axis) {
    layout = queries.placement(axis).is_shard(0) ? layout.with_placement(axis, Partial()) : layout;
  }
  for (const int axis : queries.axes_sharding(2)) {  // the outermost one first
    layout = layout.with_placement(axis, Shard(0));
  }
  return layout;
}

/// Errors: anything but whole sequences of some rows and heads.
void check_layout(const Tensor& q) {
  const Layout& layout = q.layout();
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    const Placement placement = layout.placement(axis);
    if (placement.is_partial() || (placement.is_shard() && !placement.is_shard(0) &&
                                   !(placement.is_shard(2) && shards_evenly(q.shape(), layout)))) {
      fail_input({.thing = "attention with sinks",
                  .wrong = "each rank needs whole sequences of some rows and heads",
                  .got = to_string(*q.spec())});
    }
  }
}

}  // namespace

Tensor with_sinks(const ops::AttentionBlock& block, const Tensor& sinks, DType dtype) {
  const Tensor sink = beside_sums(sinks, block.lse);
  const Tensor share = ops::exp(ops::sub(block.lse, sums_with(block.lse, sink)));  // (B, H, T)
  const Tensor y = ops::cast(block.y, sums_of(dtype));
  return ops::cast(ops::contiguous(ops::mul(y, of_features(share))), dtype);
}

Tensor attention_with_sinks(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sinks,
                            const ops::CausalOptions& options) {
  const Tensors inputs{q, k, v, sinks, options.documents};
  if (!q.is_distributed()) {
    return local_attention(inputs, options);
  }
  check_layout(q);
  const Layout layout = q.layout();
  Layout of_rows;
  if (options.documents && options.documents.is_distributed()) {
    of_rows = layout;
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      if (!layout.placement(axis).is_shard(0)) {
        of_rows = of_rows.with_placement(axis, Replicate());
      }
    }
  }
  Dims shape = q.shape();
  shape[3] = v.size(3);
  return local_map(
      [&](std::span<const Tensor> locals) { return Tensors{local_attention(locals, options)}; },
      inputs,
      {.in = {layout, layout, layout, of_heads(layout, false), of_rows},
       .out = {layout},
       .in_gradients = {layout, layout, layout, of_heads(layout, true), Layout()},
       .out_shapes = {shape},
       .redistribute_inputs = true})[0];
}

}  // namespace tessera::nn
