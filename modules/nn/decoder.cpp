module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

namespace tessera::nn {

namespace {

/// Factors of wavelengths by which the first pairs of a head's features, this share of them, are
/// rotated, and the others not.
WavelengthFactors first_pairs(std::int64_t features, double share) {
  const auto rotated = static_cast<std::int64_t>(share * static_cast<double>(features) / 2);
  std::vector<double> factors(static_cast<std::size_t>(features / 2), 1.0);
  std::fill(factors.begin() + std::min(rotated, features / 2), factors.end(),
            std::numeric_limits<double>::infinity());
  return {.short_rows = factors, .long_rows = factors, .limit = std::int64_t{1} << 40};
}

}  // namespace

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
  check_shared();
  if (!has_kind(LayerKind::attention)) {
    // its sizes have no effect
  } else if (latent_rank > 0) {
    latent(0).check();
  } else {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      attention(layer).check();
    }
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

void DecoderShape::check_shared() const {
  const auto refuse = [](const std::string& wrong) { fail_input("model: " + wrong); };
  if (shared_key_layers < 0 || shared_key_layers >= layers) {
    refuse(fmt::format("of {} layers {} cannot use the keys and values of others", layers,
                       shared_key_layers));
  }
  for (std::int64_t layer = layers - shared_key_layers; layer < layers; ++layer) {
    if (key_layer(layer) < 0) {
      refuse(fmt::format(
          "no layer before the last {} has the keys and values that layer {} needs "
          "({})",
          shared_key_layers, layer, has_window(layer) ? "with a window" : "without a window"));
    }
  }
  const bool plain = experts == 0 && chunk == 0 && latent_rank == 0 && !one_part &&
                     !has_kind(LayerKind::recurrent);
  const bool linked = shared_key_layers > 0 || streams.count > 1 || layer_embedding_dim > 0;
  if (linked && (!plain || further_layers > 0)) {
    refuse(
        "layers that share keys and values, or have streams or embeddings of their own, have no "
        "experts, chunks, latent features or recurrent layers, and no layers of further tokens");
  }
  if (streams.count < 1 || streams.active < 0 || streams.active >= streams.count) {
    refuse(
        fmt::format("there is no stream {} ({} streams, from 0)", streams.active, streams.count));
  }
  if (layer_embedding_dim > 0 && layer_embedding_vocab < 1) {
    refuse("embeddings of layers need layer_embedding_vocab");
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

std::int64_t DecoderShape::head_extent(std::int64_t layer) const {
  return global_heads.head_dim > 0 && !has_window(layer) ? global_heads.head_dim : head_extent();
}

std::int64_t DecoderShape::key_heads(std::int64_t layer) const {
  return global_heads.kv_heads > 0 && !has_window(layer) ? global_heads.kv_heads : kv_heads;
}

std::int64_t DecoderShape::key_layer(std::int64_t layer) const {
  const std::int64_t first = layers - shared_key_layers;
  if (layer < first || layer >= layers) {
    return layer;
  }
  for (std::int64_t source = first - 1; source >= 0; --source) {
    if (has_window(source) == has_window(layer)) {
      return source;
    }
  }
  return -1;
}

bool DecoderShape::gives_keys(std::int64_t layer) const {
  for (std::int64_t other = layers - shared_key_layers; other < layers; ++other) {
    if (other != layer && key_layer(other) == layer) {
      return true;
    }
  }
  return false;
}

bool DecoderShape::projects_values(std::int64_t layer) const {
  return !(global_heads.keys_as_values && !has_window(layer));
}

std::int64_t DecoderShape::ffn_extent(std::int64_t layer) const {
  return ffn_extent() * (wide_shared_layers && key_layer(layer) != layer ? 2 : 1);
}

FeedForwardOptions DecoderShape::feed_forward(std::int64_t layer) const {
  FeedForwardOptions options = feed_forward();
  options.width = ffn_extent(layer);
  const auto place = static_cast<std::size_t>(layer);
  options.sparsity = place < gate_sparsity.size() ? gate_sparsity[place] : 0;
  return options;
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
  if (global_heads.rotary_share > 0 && !local) {
    return {.theta = rope_theta,
            .neighbours = rotary_pairs,
            .factors = first_pairs(head_extent(layer), global_heads.rotary_share)};
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
          .kv_heads = key_heads(layer),
          .head_dim = head_extent(layer),
          .bias = bias,
          .output_bias = output_bias,
          .clip = qkv_clip,
          .query_key_norm = norm_rotated_only && !rotated ? HeadNorm::none : query_key_norm,
          .norm = head_norm,
          .norm_after_rotation = norm_after_rotation,
          .value_norm = value_norm,
          .keys_as_values = !projects_values(layer),
          .keys_of = key_layer(layer) == layer ? -1 : key_layer(layer),
          .gives_keys = gives_keys(layer),
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

using BlockCall = std::function<Tensors(std::span<const Tensor>)>;

/// checkpoint() of a call some of whose inputs are undefined.
Tensors recomputed(const BlockCall& call, const Tensors& inputs) {
  Tensors defined;
  for (const Tensor& one : inputs) {
    if (one) {
      defined.push_back(one);
    }
  }
  std::vector<bool> given;
  for (const Tensor& one : inputs) {
    given.push_back(!!one);
  }
  return checkpoint(
      [call, given](std::span<const Tensor> again) {
        Tensors all;
        std::size_t next = 0;
        for (const bool is_given : given) {
          all.push_back(is_given ? again[next++] : Tensor());
        }
        return call(all);
      },
      defined);
}

/// Of tokens [B, T] the one after each; the last one stays.
Tensor following(const Tensor& tokens) {
  const std::int64_t count = tokens.size(1);
  return ops::cat(
      Tensors{ops::narrow(tokens, 1, 1, count - 1), ops::narrow(tokens, 1, count - 1, 1)}, 1);
}

}  // namespace

Decoder::Decoder(const DecoderShape& shape) : shape_(shape) {
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
  for (std::int64_t i = shape.layers; i < shape.layers + shape.further_layers; ++i) {
    further_.push_back(add_child<FurtherBlock>(fmt::format("layers.{}", i), shape, i));
  }
  norm_ = attach("norm", make_norm(shape.dim, shape.norm(), shape.dtype));
  if (shape.layer_embedding_dim > 0) {
    add_layer_embeddings();
  }
  if (shape.streams.count > 1) {
    add_streams();
  }
}

void Decoder::add_layer_embeddings() {
  const std::int64_t features = shape_.layers * shape_.layer_embedding_dim;
  layer_embedding_ = add_child<Embedding>("embed_tokens_per_layer", shape_.layer_embedding_vocab,
                                          features, shape_.standard_deviation, shape_.dtype);
  layer_projection_ = add_child<Linear>("per_layer_model_projection", shape_.dim, features, false,
                                        shape_.standard_deviation, shape_.dtype);
  layer_norm_ = attach("per_layer_projection_norm",
                       make_norm(shape_.layer_embedding_dim, shape_.norm(), shape_.dtype));
}

void Decoder::add_streams() {
  const auto projections = [&](const char* name, std::vector<Child>& to) {
    for (std::int64_t i = 0; i + 1 < shape_.streams.count; ++i) {
      to.push_back(add_child<Linear>(fmt::format("{}.{}", name, i), shape_.dim, shape_.dim, false,
                                     shape_.standard_deviation, shape_.dtype));
    }
  };
  projections("altup_projections", openings_);
  projections("altup_unembed_projections", closings_);
}

std::string_view Decoder::kind() const { return "Decoder"; }
std::vector<std::string> Decoder::input_names() const {
  return {"input_ids", "documents", "positions"};
}

Tensor Decoder::embedded(const Tensor& tokens) {
  Tensor hidden = (*embedding_)(tokens);
  if (embedding_scale_ != 1) {
    hidden = ops::mul_scalar(hidden, embedding_scale_);
  }
  return embedding_norm_ ? (*embedding_norm_)(hidden) : hidden;
}

Tensor Decoder::layer_embeddings(const Tensor& tokens, const Tensor& embedded) {
  const std::int64_t features = shape_.layer_embedding_dim;
  const auto scale = [](std::int64_t extent) { return std::sqrt(static_cast<double>(extent)); };
  const auto by_layer = [&](const Tensor& x) {
    return ops::view(x, {x.size(0), x.size(1), shape_.layers, features});
  };
  const Tensor known =
      shape_.layer_embedding_vocab < shape_.vocab
          ? ops::mul(tokens,
                     ops::cast(ops::lt(tokens, static_cast<double>(shape_.layer_embedding_vocab)),
                               tokens.dtype()))
          : tokens;
  const Tensor own = ops::mul_scalar((*layer_embedding_)(known), scale(features));
  const Tensor made = ops::mul_scalar((*layer_projection_)(embedded), 1 / scale(shape_.dim));
  return ops::mul_scalar(ops::add((*layer_norm_)(by_layer(made)), by_layer(own)),
                         1 / std::sqrt(2.0));
}

namespace {

/// The mean of the squares of the last dim, [..., 1].
Tensor mean_square(const Tensor& x) { return ops::mean(ops::square(x), {-1}, true); }

/// x, as long as `like` is.
Tensor as_long_as(const Tensor& x, const Tensor& like) {
  constexpr double least = 1e-5;
  const Tensor own = ops::clamp(mean_square(x), least, std::numeric_limits<double>::infinity());
  return ops::mul(x, ops::mul(ops::sqrt(mean_square(like)), ops::rsqrt(own)));
}

}  // namespace

Tensor Decoder::opened(const Tensor& hidden) {
  Tensors streams{hidden};
  for (const Child& projection : openings_) {
    streams.push_back(as_long_as((*projection)(hidden), hidden));
  }
  return ops::stack(streams, 2);
}

Tensor Decoder::closed(const Tensor& streams) {
  const Tensor first = ops::select(streams, 2, 0);
  Tensor sum = first;
  for (std::size_t i = 0; i < closings_.size(); ++i) {
    const Tensor one = ops::select(streams, 2, static_cast<std::int64_t>(i) + 1);
    sum = ops::add(sum, as_long_as((*closings_[i])(one), first));
  }
  return ops::mul_scalar(sum, 1 / static_cast<double>(closings_.size() + 1));
}

Tensor Decoder::linked(Tensor hidden, const Tensor& embeddings, const Tensors& documents) {
  std::map<std::int64_t, std::pair<Tensor, Tensor>> keys;  // and values, of layers that give them
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    const std::int64_t source = shape_.key_layer(layer);
    const bool shares = source != layer;
    const Tensors in{hidden, embeddings ? ops::select(embeddings, 2, layer) : Tensor(),
                     shares ? keys.at(source).first : Tensor(),
                     shares ? keys.at(source).second : Tensor()};
    const auto call = [block = blocks_[i].pointer(), documents](std::span<const Tensor> inputs) {
      return (*block)(Tensors{inputs[0], documents.empty() ? Tensor() : documents[0],
                              documents.empty() ? Tensor() : documents[1], inputs[1], inputs[2],
                              inputs[3]});
    };
    const Tensors out =
        activation_checkpointing && grad_enabled() ? recomputed(call, in) : call(in);
    hidden = out[0];
    if (shape_.gives_keys(layer)) {
      keys[layer] = {out[1], out[2]};
    }
  }
  return hidden;
}

Tensors Decoder::further(const Tensors& inputs, Tensor hidden, Tensor* terms) {
  Tensors all;
  Tensor tokens = inputs[0];
  for (const Child& block : further_) {
    // The token that the layer before predicts; of the last ones no loss is counted.
    tokens = following(tokens);
    const Tensor next = embedded(tokens);
    const auto call = [kept = block.pointer(), documents = inputs[1],
                       positions = inputs[2]](std::span<const Tensor> given) {
      return (*kept)(Tensors{given[0], given[1], documents, positions});
    };
    const Tensors in{hidden, next};
    const Tensors out =
        activation_checkpointing && grad_enabled() ? recomputed(call, in) : call(in);
    hidden = out[0];
    all.push_back(out[1]);
    if (out.size() > 2) {
      *terms = *terms ? ops::add(*terms, out[2]) : out[2];
    }
  }
  return all;
}

Tensors Decoder::forward(const Tensors& inputs) {
  const Tensor& given = input(inputs, 0);  // (B, T) of ids, or (B, T, C) from the stage before
  Tensor hidden = pieces.begins() ? embedded(given) : given;
  const Tensors others = inputs[1] ? Tensors{inputs[1], inputs[2]} : Tensors{};
  Tensor terms;  // (B): sums of the blocks' further losses
  const bool has_streams = shape_.streams.count > 1;
  if (has_streams || layer_embedding_ || shape_.shared_key_layers > 0) {
    const Tensor embeddings = layer_embedding_ ? layer_embeddings(given, hidden) : Tensor();
    hidden = linked(has_streams ? opened(hidden) : hidden, embeddings, others);
    hidden = has_streams ? closed(hidden) : hidden;
  } else {
    hidden = run_blocks(blocks_in(blocks_, pieces), std::move(hidden), activation_checkpointing,
                        others, &terms);
  }
  Tensors out{pieces.ends() ? (*norm_)(hidden) : std::move(hidden)};
  if (is_training() && !further_.empty()) {
    for (Tensor& states : further(inputs, out[0], &terms)) {
      out.push_back(std::move(states));
    }
  }
  if (terms) {
    out.push_back(std::move(terms));
  }
  return out;
}

namespace {

/// Layers that mix tokens, with those that predict further ones.
std::int64_t mixers(const DecoderShape& shape) {
  std::int64_t count = shape.further_layers;
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
  if (shape_.streams.count > 1 || shape_.layer_embedding_dim > 0 || shape_.shared_key_layers > 0 ||
      shape_.further_layers > 0) {
    return {};  // layers need more than the hidden states of the one before
  }
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
  const std::size_t states =
      1 + (is_training() ? static_cast<std::size_t>(shape_.further_layers) : std::size_t{0});
  set_row_terms(out.size() > states ? std::move(out[states]) : Tensor());
  const double scale = shape_.logit_factor();  // of what the logits are made of
  const auto scaled = [&](const Tensor& x) {
    return scale == 1 || !selected().ends() ? x : ops::mul_scalar(x, scale);
  };
  Tensors further;
  for (std::size_t i = 1; i < states; ++i) {
    further.push_back(scaled(out[i]));
  }
  set_further_states(std::move(further));
  return scaled(out[0]);
}

void DecoderLM::set_activation_checkpointing(bool enabled) {
  model_->activation_checkpointing = enabled;
}

}  // namespace tessera::nn
