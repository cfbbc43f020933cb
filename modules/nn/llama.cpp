module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

namespace tessera::nn {

void LlamaShape::check() const {
  const std::pair<const char*, std::int64_t> extents[] = {
      {"vocab", vocab}, {"dim", dim},           {"layers", layers},
      {"heads", heads}, {"kv_heads", kv_heads}, {"ffn_dim", ffn_dim}};
  for (const auto& [key, value] : extents) {
    if (value < 1) {
      fail_input(fmt::format("model.{}: must be at least 1 (got {})", key, value));
    }
  }
  if (heads % kv_heads != 0) {
    fail_input(
        fmt::format("model.kv_heads: must divide heads ({} heads, {} kv_heads)", heads, kv_heads));
  }
  if (head_dim <= 0 && dim % heads != 0) {
    fail_input(fmt::format(
        "model.heads: must divide dim ({} heads, dim {}), unless head_dim is given", heads, dim));
  }
  if (head_extent() % 2 != 0) {
    fail_input(fmt::format(
        "model.heads: the rotary embedding needs an even head_dim (got {} = dim / heads)",
        head_extent()));
  }
}

namespace {

/// Writes x [B, T, KV, D] after the first `length` tokens of `kept` [B, KV, room, D], which grows
/// if it must, and returns all of them as [B, T, KV, D]. A head's tokens are contiguous: attention
/// reads them one head after the other.
Tensor append(Tensor& kept, const Tensor& x, std::int64_t length) {
  constexpr std::int64_t first_room = 256;
  const std::int64_t needed = length + x.size(1);
  if (!kept || kept.size(2) < needed) {
    const std::int64_t room = std::max({needed, first_room, kept ? 2 * kept.size(2) : 0});
    const Tensor larger = empty({x.size(0), x.size(2), room, x.size(3)}, x.dtype(), x.device());
    if (length > 0) {
      ops::copy_(ops::narrow(larger, 2, 0, length), ops::narrow(kept, 2, 0, length));
    }
    kept = larger;
  }
  ops::copy_(ops::narrow(kept, 2, length, x.size(1)), ops::transpose(x, 1, 2));
  return ops::transpose(ops::narrow(kept, 2, 0, needed), 1, 2);
}

}  // namespace

LlamaAttention::LlamaAttention(const LlamaShape& shape, int layer, KeyValueCache* const* cache)
    : shape_(shape), layer_(static_cast<std::size_t>(layer)), cache_(cache) {
  const std::int64_t d = shape.head_extent();
  q_ = add_child<Linear>("q_proj", shape.dim, shape.heads * d, false, shape.standard_deviation,
                         shape.dtype);
  k_ = add_child<Linear>("k_proj", shape.dim, shape.kv_heads * d, false, shape.standard_deviation,
                         shape.dtype);
  v_ = add_child<Linear>("v_proj", shape.dim, shape.kv_heads * d, false, shape.standard_deviation,
                         shape.dtype);
  o_ = add_child<Linear>("o_proj", shape.heads * d, shape.dim, false, shape.standard_deviation,
                         shape.dtype);
}

std::string_view LlamaAttention::kind() const { return "LlamaAttention"; }
std::vector<std::string> LlamaAttention::input_names() const { return {"hidden_states"}; }

Tensors LlamaAttention::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);
  const std::int64_t d = shape_.head_extent();
  const auto heads_of = [&](const Tensor& projected) {
    return ops::view(projected, {projected.size(0), projected.size(1), projected.size(2) / d, d});
  };
  KeyValueCache* const cache = *cache_;
  const std::int64_t position = cache == nullptr ? 0 : cache->length;
  const Tensor q = ops::rotary(heads_of((*q_)(x)), shape_.rope_theta, position);
  Tensor k = ops::rotary(heads_of((*k_)(x)), shape_.rope_theta, position);
  Tensor v = heads_of((*v_)(x));
  if (cache != nullptr) {
    if (cache->layers.size() <= layer_) {
      cache->layers.resize(layer_ + 1);
    }
    KeyValueCache::Layer& kept = cache->layers[layer_];
    k = append(kept.keys, k, position);
    v = append(kept.values, v, position);
  }
  const Tensor attended = ops::causal_attention(q, k, v);
  return {(*o_)(ops::view(attended, {attended.size(0), attended.size(1), attended.size(2) * d}))};
}

void LlamaAttention::check_placements(std::span<const int> axes) const {
  const std::pair<const Linear*, std::int64_t> projections[] = {
      {q_.get(), shape_.heads}, {k_.get(), shape_.kv_heads}, {v_.get(), shape_.kv_heads}};
  for (const auto& [projection, heads] : projections) {
    const Layout& layout = projection->parameter("weight")->value.layout();
    std::int64_t shards = 1;
    for (const int axis : axes) {
      shards *= layout.placement(axis).is_shard(0) ? layout.mesh().axis_size(axis) : 1;
    }
    if (heads % shards != 0) {
      fail_input(
          fmt::format("module '{}': its {} heads cannot be split over {} ranks; choose a mesh axis "
                      "whose size divides "
                      "model.heads ({}) and model.kv_heads ({})",
                      projection->name(), heads, shards, shape_.heads, shape_.kv_heads));
    }
  }
}

LlamaMLP::LlamaMLP(const LlamaShape& shape) {
  gate_ = add_child<Linear>("gate_proj", shape.dim, shape.ffn_dim, false, shape.standard_deviation,
                            shape.dtype);
  up_ = add_child<Linear>("up_proj", shape.dim, shape.ffn_dim, false, shape.standard_deviation,
                          shape.dtype);
  down_ = add_child<Linear>("down_proj", shape.ffn_dim, shape.dim, false, shape.standard_deviation,
                            shape.dtype);
}

std::string_view LlamaMLP::kind() const { return "LlamaMLP"; }
std::vector<std::string> LlamaMLP::input_names() const { return {"hidden_states"}; }

Tensors LlamaMLP::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);
  return {(*down_)(ops::swiglu((*gate_)(x), (*up_)(x)))};
}

LlamaBlock::LlamaBlock(const LlamaShape& shape, int layer, KeyValueCache* const* cache) {
  attention_ = add_child<LlamaAttention>("self_attn", shape, layer, cache);
  mlp_ = add_child<LlamaMLP>("mlp", shape);
  input_norm_ = add_child<RMSNorm>("input_layernorm", shape.dim, shape.norm_eps, shape.dtype);
  post_norm_ =
      add_child<RMSNorm>("post_attention_layernorm", shape.dim, shape.norm_eps, shape.dtype);
  if (shape.dropout > 0) {
    attention_dropout_ = add_child<Dropout>("attention_dropout", shape.dropout);
    mlp_dropout_ = add_child<Dropout>("mlp_dropout", shape.dropout);
  }
}

std::string_view LlamaBlock::kind() const { return "LlamaBlock"; }
std::vector<std::string> LlamaBlock::input_names() const { return {"hidden_states"}; }

Tensors LlamaBlock::forward(const Tensors& inputs) {
  const auto dropped = [](const std::shared_ptr<Dropout>& dropout, Tensor x) {
    return dropout ? (*dropout)(x) : std::move(x);
  };
  const Tensor& x = input(inputs, 0);
  const Tensor middle = ops::add(x, dropped(attention_dropout_, (*attention_)((*input_norm_)(x))));
  return {ops::add(middle, dropped(mlp_dropout_, (*mlp_)((*post_norm_)(middle))))};
}

LlamaModel::LlamaModel(const LlamaShape& shape, KeyValueCache* const* cache) {
  embedding_ = add_child<Embedding>("embed_tokens", shape.vocab, shape.dim,
                                    shape.standard_deviation, shape.dtype);
  // "layers.0": the dot is part of the path, as in a list of modules.
  for (int i = 0; i < shape.layers; ++i) {
    blocks_.push_back(add_child<LlamaBlock>(fmt::format("layers.{}", i), shape, i, cache));
  }
  norm_ = add_child<RMSNorm>("norm", shape.dim, shape.norm_eps, shape.dtype);
}

std::string_view LlamaModel::kind() const { return "LlamaModel"; }
std::vector<std::string> LlamaModel::input_names() const { return {"input_ids"}; }

Tensors LlamaModel::forward(const Tensors& inputs) {
  Tensor x = (*embedding_)(input(inputs, 0));
  for (const auto& block : blocks_) {
    if (activation_checkpointing && grad_enabled()) {
      const Tensors in{x};
      x = checkpoint([block](std::span<const Tensor> again) { return (*block)(Tensors{again[0]}); },
                     in)[0];
    } else {
      x = (*block)(x);
    }
  }
  return {(*norm_)(x)};
}

LlamaForCausalLM::LlamaForCausalLM(const LlamaShape& shape) : shape_(shape) {
  shape.check();
  model_ = add_child<LlamaModel>("model", shape, &cache_);
  head_ = add_child<Linear>("lm_head", shape.dim, shape.vocab, false, shape.standard_deviation,
                            shape.dtype);
  if (shape.tie_embeddings) {
    head_->set_parameter("weight", model_->embedding()->parameter("weight"));
  }
  loss_ = add_child<CrossEntropyLoss>("loss");
  set_names();
}

std::string_view LlamaForCausalLM::kind() const { return "LlamaForCausalLM"; }
std::vector<std::string> LlamaForCausalLM::input_names() const { return {"input_ids"}; }

Tensors LlamaForCausalLM::forward(const Tensors& inputs) {
  const Tensor hidden = (*model_)(input(inputs, 0));
  if (cache_ != nullptr) {
    cache_->length += inputs[0].size(1);
  }
  return {(*head_)(hidden)};
}

void LlamaForCausalLM::set_activation_checkpointing(bool enabled) {
  model_->activation_checkpointing = enabled;
}

}  // namespace tessera::nn
