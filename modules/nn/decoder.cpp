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
          .width = ffn_extent(),
          .gated = gated,
          .activation = activation,
          .bias = ffn_bias,
          .standard_deviation = standard_deviation,
          .dtype = dtype};
}

MixtureOptions DecoderShape::mixture() const {
  FeedForwardOptions expert = feed_forward();
  expert.width = expert_extent();
  expert.bias = expert_form.bias;
  expert.limits = expert_form.limits;
  return {.expert = expert,
          .latent_dim = expert_form.latent_dim,
          .latent_bias = ffn_bias,
          .experts = experts,
          .experts_per_token = experts_per_token,
          .score = router_score,
          .normalize = normalize_experts,
          .scale = expert_scale,
          .weigh_inputs = expert_form.weigh_inputs,
          .logit_bias = expert_form.logit_bias,
          .groups = group_score == GroupScore::none ? 1 : expert_groups,
          .groups_per_token = group_score == GroupScore::none ? 1 : groups_per_token,
          .group_score = group_score,
          .shared_width = shared_extent(),
          .shared_bias = ffn_bias,
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
  if (head_dim <= 0 && dim % heads != 0 && (latent_rank == 0 || value_dim == 0)) {
    fail_input(fmt::format(
        "model.heads: must divide dim ({} heads, dim {}), unless head_dim is given", heads, dim));
  }
  if (gated && activation == Activation::xielu) {
    fail_input("model: the activation xielu goes with feed-forward parts without a gate");
  }
  if (!has_kind(LayerKind::attention)) {
    // its sizes have no effect
  } else if (latent_rank > 0) {
    latent(0).check();
  } else {
    attention(0).check();
  }
  if (has_kind(LayerKind::recurrent)) {
    recurrence().check();
  }
  if (experts > 0) {
    if (experts_every < 1) {
      fail_input(fmt::format("model.experts_every: must be at least 1 (got {})", experts_every));
    }
    mixture().check();
  }
}

LayerKind DecoderShape::layer_kind(std::int64_t layer) const {
  return layer_pattern.empty()
             ? LayerKind::attention
             : static_cast<LayerKind>(
                   layer_pattern[static_cast<std::size_t>(layer) % layer_pattern.size()]);
}

bool DecoderShape::has_kind(LayerKind kind) const {
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (layer_kind(layer) == kind) {
      return true;
    }
  }
  return false;
}

bool DecoderShape::has_mixer(std::int64_t layer) const {
  const LayerKind kind = layer_kind(layer);
  return kind == LayerKind::attention || kind == LayerKind::recurrent;
}

bool DecoderShape::has_feed_forward(std::int64_t layer) const {
  return !one_part || !has_mixer(layer);
}

std::int64_t DecoderShape::ffn_extent() const {
  if (!ffn_rule.gated_share) {
    return ffn_dim;
  }
  const std::int64_t share = 2 * ffn_dim / 3;
  if (ffn_rule.factor == 0) {
    return share;
  }
  const auto width = static_cast<std::int64_t>(ffn_rule.factor * static_cast<double>(share));
  return (width + ffn_rule.multiple - 1) / ffn_rule.multiple * ffn_rule.multiple;
}

bool DecoderShape::has_experts(std::int64_t layer) const {
  if (one_part) {
    return layer_kind(layer) == LayerKind::experts;
  }
  return experts > 0 && layer >= first_dense_layers && (layer + 1) % experts_every == 0 &&
         (last_expert_layer < 0 || layer <= last_expert_layer) &&
         std::ranges::find(dense_layers, layer) == dense_layers.end();
}

bool DecoderShape::has_window(std::int64_t layer) const {
  return window > 0 && (global_every == 0 || (layer + 1) % global_every != 0) &&
         std::ranges::find(global_layers, layer) == global_layers.end();
}

bool DecoderShape::has_chunks(std::int64_t layer) const {
  return chunk > 0 && std::ranges::find(global_layers, layer) == global_layers.end();
}

bool DecoderShape::is_rotated(std::int64_t layer) const {
  return !unrotated && (unrotated_every == 0 || (layer + 1) % unrotated_every != 0) &&
         (!rotate_local_only || window == 0 || has_window(layer)) &&
         std::ranges::find(unrotated_layers, layer) == unrotated_layers.end();
}

std::int64_t DecoderShape::rotary_extent() const {
  const auto share = static_cast<std::int64_t>(static_cast<double>(head_extent()) * rotary_share);
  return rotary_dim > 0 ? rotary_dim : share;
}

NormOptions DecoderShape::norm() const {
  return {.kind = norm_kind,
          .eps = norm_eps,
          .weight = norm_weight,
          .bias = norm_bias,
          .offset = norm_offset};
}

RotaryOptions DecoderShape::rotary(std::int64_t layer) const {
  const bool local = has_window(layer);
  const bool own_theta = local && local_rope_theta > 0;
  if (!is_rotated(layer)) {
    return {};
  }
  return {.theta = own_theta ? local_rope_theta : rope_theta,
          .scaling = own_theta || (local && local_unscaled) ? ops::RotaryScaling() : rope_scaling,
          .dims = rotary_extent(),
          .neighbours = rotary_pairs,
          .reversed = rotary_reversed,
          .stretch = rope_stretch,
          .limit = rope_limit,
          .factors = rope_factors};
}

AttentionOptions DecoderShape::attention(std::int64_t layer) const {
  NormOptions head_norm = norm();
  head_norm.weight = head_norm_weight;
  head_norm.bias = head_norm_bias;
  const bool rotated = is_rotated(layer);
  const bool grows = growth.enabled && !(growth.unrotated_only && rotated);
  const double scale = score_dim > 0 ? 1 / std::sqrt(score_dim) : 0;
  return {.dim = dim,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .bias = bias,
          .output_bias = output_bias,
          .clip = qkv_clip,
          .query_key_norm = norm_rotated_only && !rotated ? HeadNorm::none : query_key_norm,
          .norm = head_norm,
          .norm_after_rotation = norm_after_rotation,
          .growth = grows ? growth.queries : QueryGrowth(),
          .rotary = rotary(layer),
          .gate = attention_gate,
          .scale = attention_scale > 0 ? attention_scale : scale,
          .window = has_window(layer) ? window : 0,
          .softcap = attention_softcap,
          .chunk = has_chunks(layer) ? chunk : 0,
          .sinks = sinks,
          .standard_deviation = standard_deviation,
          .dtype = dtype};
}

double DecoderShape::logit_factor() const {
  const double divisor =
      logit_base > 0 ? static_cast<double>(dim) / static_cast<double>(logit_base) : 1;
  return logit_scale / (logit_divisor * divisor);
}

double DecoderShape::residual_factor() const {
  return residual_depth > 0
             ? residual_scale * residual_depth / std::sqrt(static_cast<double>(layers))
             : residual_scale;
}

LatentOptions DecoderShape::latent(std::int64_t layer) const {
  RotaryOptions rotated = rotary(layer);
  rotated.dims = 0;
  return {.dim = dim,
          .heads = heads,
          .query_rank = query_rank,
          .latent_rank = latent_rank,
          .plain_dim = plain_dim,
          .rotated_dim = rotated_dim,
          .value_dim = value_extent(),
          .bias = bias,
          .rotary = rotated,
          .scale = attention_scale,
          .standard_deviation = standard_deviation,
          .dtype = dtype};
}

RecurrentOptions DecoderShape::recurrence() const {
  RecurrentOptions options = recurrent;
  options.dim = dim;
  options.norm_eps = norm_eps;
  options.standard_deviation = standard_deviation;
  options.dtype = dtype;
  return options;
}

namespace {

/// The module's result; x itself where there is none.
Tensor through(const Child& module, Tensor x) { return module ? (*module)(x) : std::move(x); }

}  // namespace

DecoderBlock::DecoderBlock(const DecoderShape& shape, std::int64_t layer)
    : parallel_(shape.parallel_block), residual_scale_(shape.residual_factor()) {
  if (shape.has_mixer(layer)) {
    add_mixer(shape, layer);
  }
  if (shape.has_feed_forward(layer)) {
    add_feed_forward(shape, layer);
  }
  add_norms(shape);
  if (shape.dropout > 0) {
    attention_dropout_ = add_child<Dropout>("attention_dropout", shape.dropout);
    mlp_dropout_ = add_child<Dropout>("mlp_dropout", shape.dropout);
  }
}

void DecoderBlock::add_mixer(const DecoderShape& shape, std::int64_t layer) {
  if (shape.layer_kind(layer) == LayerKind::recurrent) {
    const RecurrentOptions options = shape.recurrence();
    attention_ = options.rule == RecurrentRule::convolution
                     ? Child(add_child<GatedConvolution>("recurrent", options))
                     : Child(add_child<Recurrence>("recurrent", options));
  } else if (shape.latent_rank > 0) {
    attention_ = add_child<LatentAttention>("self_attn", shape.latent(layer));
  } else {
    attention_ = add_child<Attention>("self_attn", shape.attention(layer));
  }
}

void DecoderBlock::add_feed_forward(const DecoderShape& shape, std::int64_t layer) {
  if (shape.has_experts(layer)) {
    mlp_ = add_child<SparseMixture>("mlp", shape.mixture());
  } else if (shape.gated) {
    mlp_ = add_child<GatedMLP>("mlp", shape.feed_forward());
  } else {
    mlp_ = add_child<PlainMLP>("mlp", shape.feed_forward());
  }
}

void DecoderBlock::add_norms(const DecoderShape& shape) {
  const auto norm = [&](const char* name) {
    return attach(name, make_norm(shape.dim, shape.norm(), shape.dtype));
  };
  if (shape.norm_inputs) {
    attention_norm_ = norm("input_layernorm");
  }
  if (shape.one_part) {
    return;
  }
  if (shape.norm_results) {
    attended_norm_ = norm("post_attention_layernorm");
    if (shape.norm_inputs) {
      mlp_norm_ = norm("pre_feedforward_layernorm");
    }
    computed_norm_ = norm("post_feedforward_layernorm");
  } else if (shape.norm_inputs && (!parallel_ || shape.parallel_norms)) {
    mlp_norm_ = norm("post_attention_layernorm");
  }
}

std::string_view DecoderBlock::kind() const { return "DecoderBlock"; }
std::vector<std::string> DecoderBlock::input_names() const {
  return {"hidden_states", "documents", "positions"};
}

Tensor DecoderBlock::attended(const Tensors& inputs, const Tensor& x) {
  const Tensor& documents = inputs[1];
  return documents
             ? attention_->by_name(
                   {{"hidden_states", x}, {"documents", documents}, {"positions", inputs[2]}})[0]
             : (*attention_)(x);
}

Tensor DecoderBlock::finished(Tensor result, const Child& norm, const Child& dropout) const {
  result = through(dropout, through(norm, std::move(result)));
  return residual_scale_ == 1 ? result : ops::mul_scalar(result, residual_scale_);
}

Tensors DecoderBlock::forward(const Tensors& inputs) {
  // All are (B, T, C): rows, tokens, features; documents and positions (B, T).
  const Tensor& x = input(inputs, 0);
  const Tensor normed = through(attention_norm_, x);
  if (!attention_) {
    Tensors only = (*mlp_)(Tensors{normed});
    only[0] = ops::add(x, finished(only[0], {}, mlp_dropout_));
    return only;
  }
  const Tensor attended_x = finished(attended(inputs, normed), attended_norm_, attention_dropout_);
  const Tensor middle = ops::add(x, attended_x);
  if (!mlp_) {
    return {middle};
  }
  const Tensor entering =
      parallel_ && !mlp_norm_ ? normed : through(mlp_norm_, parallel_ ? x : middle);
  Tensors mlp = (*mlp_)(Tensors{entering});
  mlp[0] = ops::add(middle, finished(mlp[0], computed_norm_, mlp_dropout_));
  return mlp;
}

Decoder::Decoder(const DecoderShape& shape) {
  embedding_ = add_child<Embedding>("embed_tokens", shape.vocab, shape.dim,
                                    shape.standard_deviation, shape.dtype);
  embedding_scale_ = shape.embedding_scale *
                     (shape.scale_embeddings ? std::sqrt(static_cast<double>(shape.dim)) : 1);
  const NormOptions unweighted{.kind = shape.norm_kind, .eps = shape.norm_eps, .weight = false};
  if (shape.embedding_norm) {
    embedding_norm_ = attach("embed_norm", make_norm(shape.dim, unweighted, shape.dtype));
  }
  // "layers.0": the dot is part of the path, as in a list of modules.
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    blocks_.push_back(add_child<DecoderBlock>(fmt::format("layers.{}", i), shape, i));
  }
  norm_ = attach("norm", make_norm(shape.dim, shape.norm(), shape.dtype));
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
    hidden = through(embedding_norm_, std::move(hidden));
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

namespace {

std::int64_t mixers(const DecoderShape& shape) {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    count += shape.has_mixer(layer) ? 1 : 0;
  }
  return count;
}

}  // namespace

DecoderLM::DecoderLM(const DecoderShape& shape) : LanguageModel(mixers(shape)), shape_(shape) {
  shape.check();
  model_ = add_child<Decoder>("model", shape);
  const AddedChild<Linear> head = add_child<Linear>(
      "lm_head", shape.dim, shape.vocab, shape.head_bias, shape.standard_deviation, shape.dtype);
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
  const double scale = shape_.logit_factor();  // of what the logits are made of
  return scale == 1 || !selected().ends() ? std::move(out[0]) : ops::mul_scalar(out[0], scale);
}

void DecoderLM::set_activation_checkpointing(bool enabled) {
  model_->activation_checkpointing = enabled;
}

}  // namespace tessera::nn
