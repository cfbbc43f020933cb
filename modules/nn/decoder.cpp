module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {

FeedForwardOptions DecoderShape::feed_forward() const {
  return {.dim = dim,
          .width = ffn_dim,
          .activation = activation,
          .bias = ffn_bias,
          .standard_deviation = standard_deviation,
          .dtype = dtype};
}

MixtureOptions DecoderShape::mixture() const {
  FeedForwardOptions expert = feed_forward();
  expert.width = expert_extent();
  return {.expert = expert,
          .experts = experts,
          .experts_per_token = experts_per_token,
          .score = router_score,
          .normalize = normalize_experts,
          .scale = expert_scale,
          .groups = expert_groups,
          .groups_per_token = groups_per_token,
          .shared_width = shared_extent(),
          .shared_gate = shared_expert_gate,
          .bias = router_bias};
}

void DecoderShape::check() const {
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
  if (experts > 0) {
    if (experts_every < 1) {
      fail_input(fmt::format("model.experts_every: must be at least 1 (got {})", experts_every));
    }
    mixture().check();
  }
}

bool DecoderShape::has_experts(std::int64_t layer) const {
  return experts > 0 && layer >= first_dense_layers && (layer + 1) % experts_every == 0 &&
         std::ranges::find(dense_layers, layer) == dense_layers.end();
}

namespace {

AttentionOptions attention_of(const DecoderShape& shape, std::int64_t layer) {
  const bool local = shape.has_window(layer);
  const bool own_theta = local && shape.local_rope_theta > 0;
  return {.dim = shape.dim,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .bias = shape.bias,
          .output_bias = shape.output_bias,
          .query_key_norm = shape.query_key_norm,
          .norm_eps = shape.norm_eps,
          .norm_offset = shape.norm_offset,
          .rope_theta = own_theta ? shape.local_rope_theta : shape.rope_theta,
          .rope_scaling = own_theta ? ops::RotaryScaling() : shape.rope_scaling,
          .scale = shape.score_dim > 0 ? 1 / std::sqrt(shape.score_dim) : 0,
          .window = local ? shape.window : 0,
          .softcap = shape.attention_softcap,
          .standard_deviation = shape.standard_deviation,
          .dtype = shape.dtype};
}

/// The module's result; x itself where there is none.
Tensor through(const Child& module, Tensor x) { return module ? (*module)(x) : std::move(x); }

}  // namespace

DecoderBlock::DecoderBlock(const DecoderShape& shape, std::int64_t layer) {
  const auto norm = [&](const char* name) {
    return add_child<RMSNorm>(name, shape.dim, shape.norm_eps, shape.dtype, shape.norm_offset);
  };
  attention_ = add_child<Attention>("self_attn", attention_of(shape, layer));
  if (shape.has_experts(layer)) {
    mlp_ = add_child<SparseMixture>("mlp", shape.mixture());
  } else {
    mlp_ = add_child<GatedMLP>("mlp", shape.feed_forward());
  }
  attention_norm_ = norm("input_layernorm");
  if (shape.norm_results) {
    attended_norm_ = norm("post_attention_layernorm");
    mlp_norm_ = norm("pre_feedforward_layernorm");
    computed_norm_ = norm("post_feedforward_layernorm");
  } else {
    mlp_norm_ = norm("post_attention_layernorm");
  }
  if (shape.dropout > 0) {
    attention_dropout_ = add_child<Dropout>("attention_dropout", shape.dropout);
    mlp_dropout_ = add_child<Dropout>("mlp_dropout", shape.dropout);
  }
}

std::string_view DecoderBlock::kind() const { return "DecoderBlock"; }
std::vector<std::string> DecoderBlock::input_names() const {
  return {"hidden_states", "documents", "positions"};
}

Tensors DecoderBlock::forward(const Tensors& inputs) {
  // All are (B, T, C): rows, tokens, features; documents and positions (B, T).
  const Tensor& x = input(inputs, 0);
  const Tensor& documents = inputs[1];
  const Tensor normed = (*attention_norm_)(x);
  const Tensor attended =
      through(attended_norm_, documents ? attention_->by_name({{"hidden_states", normed},
                                                               {"documents", documents},
                                                               {"positions", inputs[2]}})[0]
                                        : (*attention_)(normed));
  const Tensor middle = ops::add(x, through(attention_dropout_, attended));
  Tensors mlp = (*mlp_)(Tensors{(*mlp_norm_)(middle)});
  const Tensor computed = through(computed_norm_, mlp[0]);
  mlp[0] = ops::add(middle, through(mlp_dropout_, computed));
  return mlp;
}

Decoder::Decoder(const DecoderShape& shape) {
  embedding_ = add_child<Embedding>("embed_tokens", shape.vocab, shape.dim,
                                    shape.standard_deviation, shape.dtype);
  if (shape.scale_embeddings) {
    embedding_scale_ = std::sqrt(static_cast<double>(shape.dim));
  }
  // "layers.0": the dot is part of the path, as in a list of modules.
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    blocks_.push_back(add_child<DecoderBlock>(fmt::format("layers.{}", i), shape, i));
  }
  norm_ = add_child<RMSNorm>("norm", shape.dim, shape.norm_eps, shape.dtype, shape.norm_offset);
}

std::string_view Decoder::kind() const { return "Decoder"; }
std::vector<std::string> Decoder::input_names() const {
  return {"input_ids", "documents", "positions"};
}

Tensors Decoder::forward(const Tensors& inputs) {
  Tensor hidden = input(inputs, 0);  // (B, T) of ids, or (B, T, C) from the stage before
  if (pieces.begins()) {
    hidden = (*embedding_)(hidden);
    if (embedding_scale_ != 1) {
      hidden = ops::mul_scalar(hidden, embedding_scale_);
    }
  }
  const Tensors others = inputs[1] ? Tensors{inputs[1], inputs[2]} : Tensors{};
  Tensor terms;  // (B): sums of the blocks' further losses
  hidden = run_blocks(blocks_in(blocks_, pieces), std::move(hidden), activation_checkpointing,
                      others, &terms);
  Tensors out{pieces.ends() ? (*norm_)(hidden) : std::move(hidden)};
  if (terms) {
    out.push_back(std::move(terms));
  }
  return out;
}

DecoderLM::DecoderLM(const DecoderShape& shape) : LanguageModel(shape.layers), shape_(shape) {
  shape.check();
  model_ = add_child<Decoder>("model", shape);
  const AddedChild<Linear> head = add_child<Linear>("lm_head", shape.dim, shape.vocab, false,
                                                    shape.standard_deviation, shape.dtype);
  if (shape.tie_embeddings) {
    head->set_parameter("weight", model_->embedding().parameter("weight"));
  }
  complete(head, shape.logit_softcap);
}

std::string_view DecoderLM::kind() const { return "DecoderLM"; }

std::vector<std::vector<std::string>> DecoderLM::pieces() const {
  std::vector<std::vector<std::string>> all = {{"model.embed_tokens"}};
  for (std::int64_t i = 0; i < shape_.layers; ++i) {
    all.push_back({fmt::format("model.layers.{}", i)});
  }
  all.push_back({"model.norm", "lm_head"});
  return all;
}

Tensor DecoderLM::hidden_states(const Tensors& inputs) {
  model_->pieces = selected();
  Tensors out = (*model_)(Tensors{input(inputs, 0), inputs[1], inputs[2]});
  set_row_terms(out.size() > 1 ? std::move(out[1]) : Tensor());
  return std::move(out[0]);
}

void DecoderLM::set_activation_checkpointing(bool enabled) {
  model_->activation_checkpointing = enabled;
}

}  // namespace tessera::nn
