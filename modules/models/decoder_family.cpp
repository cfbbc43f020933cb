module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <variant>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import :decoder_family;
import :decoder_values;

namespace tessera::models {
namespace {

ModelRange from(double low, double high) { return {.low = low, .high = high}; }
constexpr ModelRange positive{.low = 0, .low_open = true};

using Kind = ops::RotaryScaling::Kind;

double number(std::int64_t value) { return static_cast<double>(value); }

/// The keys of a scaled rotary embedding, by the numbers of a RotaryScaling.
std::vector<ModelKey> rope_keys() {
  ModelKey kind{"rope_scaling", std::string("none"),
                "How the rotary embedding is changed for sequences that are longer than those of "
                "pretraining."};
  for (const RopeKind& known : rope_kinds) {
    kind.choices.emplace_back(known.key);
  }
  return {kind,
          {"rope_factor", 1.0, "By which low frequencies are divided.", positive},
          {"rope_original_positions", 0.0,
           "With `llama3`, `yarn`, `longrope` and `dynamic`: the longest sequence of pretraining.",
           from(0, 0x1p40)},
          {"rope_low", 1.0,
           "A frequency that turns at most so often within those positions is divided.", positive},
          {"rope_high", 4.0, "One that turns at least so often stays.", positive},
          {"rope_amplitude", 1.0,
           "Factor of cosines and sines; `yarn` and `longrope` have one above 1.", positive},
          {"rope_whole_dims", true, "With `yarn`: bounds between dims are rounded outwards."},
          {"rope_short_factors", std::vector<double>(),
           "With `longrope`: by which each wavelength is multiplied in rows of at most "
           "`rope_original_positions` tokens, one for each pair of rotated features.",
           positive},
          {"rope_long_factors", std::vector<double>(), "The same in longer rows.", positive}};
}

void set_scaling(const ModelValues& values, nn::DecoderShape& shape) {
  ops::RotaryScaling& scaling = shape.rope_scaling;
  const RopeKind& kind = rope_kind(values.text("rope_scaling"));
  const auto limit = static_cast<std::int64_t>(values.number("rope_original_positions"));
  if (kind.change == RopeChange::base) {
    shape.rope_stretch = values.number("rope_factor");
    shape.rope_limit = limit;
    return;
  }
  if (kind.change == RopeChange::wavelengths) {
    shape.rope_factors = {.short_rows = values.numbers("rope_short_factors"),
                          .long_rows = values.numbers("rope_long_factors"),
                          .limit = limit,
                          .amplitude = values.number("rope_amplitude")};
    return;
  }
  scaling.kind = kind.kind;
  scaling.factor = values.number("rope_factor");
  scaling.original_positions = values.number("rope_original_positions");
  scaling.low = values.number("rope_low");
  scaling.high = values.number("rope_high");
  scaling.amplitude = values.number("rope_amplitude");
  scaling.whole_dims = values.flag("rope_whole_dims");
}

std::vector<ValueConflict> expert_misfits(const nn::DecoderShape& shape) {
  std::vector<ValueConflict> found;
  if (shape.experts > 0 &&
      (shape.experts_per_token < 1 || shape.experts_per_token > shape.experts)) {
    const std::string text =
        fmt::format("a token {} ({} experts, {} per token)",
                    shape.experts_per_token < 1 ? "must have an expert"
                                                : "cannot have more experts than there are",
                    shape.experts, shape.experts_per_token);
    found.push_back({{"experts_per_token", "experts"}, text, "num_experts_per_tok: " + text});
  } else if (shape.experts > 0 && shape.group_score != nn::GroupScore::none &&
             (shape.expert_groups < 1 || shape.experts % shape.expert_groups != 0 ||
              shape.groups_per_token < 1 || shape.groups_per_token > shape.expert_groups ||
              shape.experts_per_token >
                  shape.experts / shape.expert_groups * shape.groups_per_token)) {
    const std::string text = fmt::format(
        "groups must have equally many experts, and a token's groups at least as many as it has "
        "({} experts in {} groups, {} groups and {} experts per token)",
        shape.experts, shape.expert_groups, shape.groups_per_token, shape.experts_per_token);
    found.push_back({{"expert_groups", "groups_per_token", "experts"}, text, "n_group: " + text});
  }
  const auto beyond = std::ranges::find_if(
      shape.dense_layers, [&](std::int64_t layer) { return layer >= shape.layers; });
  if (beyond != shape.dense_layers.end()) {
    const std::string text =
        fmt::format("there is no layer {} ({} layers, from 0)", *beyond, shape.layers);
    found.push_back({{"dense_layers", "layers"}, text, "mlp_only_layers: " + text});
  }
  return found;
}

/// Those of layers that use keys and values of others, of streams, and of numbers of each layer.
std::vector<ValueConflict> linked_misfits(const nn::DecoderShape& shape) {
  std::vector<ValueConflict> found;
  const auto add = [&](std::vector<std::string> keys, const std::string& hub,
                       const std::string& text) {
    found.push_back({std::move(keys), text, hub + ": " + text});
  };
  for (std::int64_t layer = std::max<std::int64_t>(0, shape.layers - shape.shared_key_layers);
       layer < shape.layers; ++layer) {
    if (shape.key_layer(layer) < 0) {
      add({"shared_key_layers", "layers"}, "num_kv_shared_layers",
          fmt::format("no layer before the last {} has keys and values for layer {}, one {} a "
                      "window",
                      shape.shared_key_layers, layer,
                      shape.has_window(layer) ? "with" : "without"));
      break;
    }
  }
  if (shape.streams.active >= shape.streams.count) {
    add({"active_stream", "streams"}, "altup_active_idx",
        fmt::format("there is no stream {} ({} streams, from 0)", shape.streams.active,
                    shape.streams.count));
  }
  if (!shape.gate_sparsity.empty() && std::ssize(shape.gate_sparsity) != shape.layers) {
    add({"gate_sparsity", "layers"}, "activation_sparsity_pattern",
        fmt::format("each layer needs a number ({} layers, {} numbers)", shape.layers,
                    shape.gate_sparsity.size()));
  }
  const nn::GlobalHeads& global = shape.global_heads;
  if (global.kv_heads > 0 && !global.keys_as_values) {
    add({"global_kv_heads", "keys_as_values"}, "num_global_key_value_heads",
        "layers without a window have other heads of keys only with attention_k_eq_v");
  }
  if (global.kv_heads > 0 && shape.heads % global.kv_heads != 0) {
    add({"global_kv_heads", "heads"}, "num_global_key_value_heads",
        fmt::format("must divide the {} heads (got {})", shape.heads, global.kv_heads));
  }
  if (global.head_dim % 2 != 0) {
    add({"global_head_dim"}, "global_head_dim",
        fmt::format("the width of a head must be even for the rotary embedding (got {})",
                    global.head_dim));
  }
  return found;
}

}  // namespace

std::vector<ValueConflict> misfits_of(const nn::DecoderShape& shape) {
  std::vector<ValueConflict> found;
  if (shape.kv_heads > 0 && shape.heads % shape.kv_heads != 0) {
    found.push_back({{"kv_heads", "heads"},
                     fmt::format("must divide model.heads ({} heads, {} kv_heads)", shape.heads,
                                 shape.kv_heads),
                     fmt::format("num_key_value_heads {} does not divide num_attention_heads {}",
                                 shape.kv_heads, shape.heads)});
  }
  const bool own_widths = shape.latent_rank > 0 && shape.value_dim > 0;  // of heads
  if (shape.head_dim == 0 && shape.dim % shape.heads != 0 && !own_widths) {
    found.push_back({{"heads", "dim"},
                     fmt::format("must divide model.dim (dim {}, {} heads); or set model.head_dim",
                                 shape.dim, shape.heads),
                     fmt::format("num_attention_heads {} does not divide hidden_size {}",
                                 shape.heads, shape.dim)});
  } else if (shape.latent_rank == 0 && !shape.unrotated &&
             (shape.rotary_extent() % 2 != 0 || shape.rotary_extent() > shape.head_extent())) {
    found.push_back(
        {{"head_dim", "heads", "dim"},
         fmt::format("the width of a head must be even for the rotary embedding, as the part of it "
                     "that is rotated (got {} of {})",
                     shape.rotary_extent(), shape.head_extent()),
         fmt::format("of head_dim {} {} features are rotated; the rotary embedding needs pairs",
                     shape.head_extent(), shape.rotary_extent())});
  }
  const ops::RotaryScaling& rope = shape.rope_scaling;
  if (shape.rope_stretch > 0 && shape.rope_limit < 1) {
    found.push_back({{"rope_original_positions", "rope_scaling"},
                     "dynamic needs rope_original_positions",
                     "the dynamic rotary embedding needs max_position_embeddings"});
  }
  if ((rope.kind == Kind::llama3 || rope.kind == Kind::yarn) &&
      !(rope.original_positions > 0 && rope.high > rope.low)) {
    const std::string got =
        fmt::format("got {} positions, {} and {}", rope.original_positions, rope.low, rope.high);
    found.push_back({{"rope_original_positions", "rope_low", "rope_high", "rope_scaling"},
                     fmt::format("{} needs rope_original_positions, and rope_low below rope_high "
                                 "({})",
                                 rope.kind == Kind::yarn ? "yarn" : "llama3", got),
                     fmt::format("the rotary embedding is not right: it needs the positions of "
                                 "pretraining, and the low bound below the high one ({})",
                                 got)});
  }
  const nn::WavelengthFactors& factors = shape.rope_factors;
  const std::int64_t pairs =
      (shape.latent_rank > 0 ? shape.rotated_dim : shape.rotary_extent()) / 2;
  if (factors.exist() &&
      (std::ssize(factors.short_rows) != pairs || std::ssize(factors.long_rows) != pairs)) {
    const std::string got = fmt::format("of {} pairs there are {} and {}", pairs,
                                        factors.short_rows.size(), factors.long_rows.size());
    found.push_back({{"rope_short_factors", "rope_long_factors"},
                     fmt::format("each pair of rotated features needs both factors ({})", got),
                     fmt::format("short_factor and long_factor: each pair of rotated features "
                                 "needs both ({})",
                                 got)});
  }
  if (factors.exist() && factors.limit < 1) {
    found.push_back({{"rope_original_positions", "rope_scaling"},
                     "longrope needs rope_original_positions",
                     "longrope needs original_max_position_embeddings"});
  }
  std::ranges::copy(expert_misfits(shape), std::back_inserter(found));
  std::ranges::copy(linked_misfits(shape), std::back_inserter(found));
  std::ranges::copy(layer_misfits(shape), std::back_inserter(found));
  return found;
}

namespace {

std::int64_t layers_with_experts(const nn::DecoderShape& shape) {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    count += shape.has_experts(layer) ? 1 : 0;
  }
  return count;
}

}  // namespace

std::int64_t layers_of_kind(const nn::DecoderShape& shape, nn::LayerKind kind) {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    count += shape.layer_kind(layer) == kind ? 1 : 0;
  }
  return count;
}

std::int64_t first_layer(const nn::DecoderShape& shape, bool with_experts) {
  std::int64_t layer = 0;
  while (layer < shape.layers &&
         (shape.has_experts(layer) != with_experts || !shape.has_feed_forward(layer))) {
    ++layer;
  }
  return layer < shape.layers ? layer : -1;
}

nn::DecoderShape DecoderFamily::shape_of(const ModelSizes& sizes) const {
  const ModelValues& values = sizes.values;
  nn::DecoderShape shape = traits_.shape;
  shape.vocab = sizes.vocab;
  shape.dim = values.integer("dim");
  shape.layers = values.integer("layers");
  shape.heads = values.integer("heads");
  shape.kv_heads = values.integer("kv_heads");
  shape.head_dim = values.integer("head_dim");
  shape.ffn_dim = values.integer("ffn_dim");
  shape.rope_theta = values.number("rope_theta");
  shape.norm_eps = values.number("norm_eps");
  shape.tie_embeddings = values.flag("tie_embeddings");
  if (traits_.scaled_rope) {
    set_scaling(values, shape);
  }
  if (traits_.partial_rope) {
    shape.rotary_share = values.number("rotary_share");
  }
  if (lists_layers(traits_)) {
    shape.global_layers = values.integers("global_layers");
  }
  if (traits_.rope_by_layers) {
    shape.local_rope_theta = values.number("local_rope_theta");
  }
  if (traits_.rope_growth) {
    shape.growth.queries = {.scale = values.number("query_growth"),
                            .period = values.integer("query_growth_period")};
  }
  if (property_of(traits_, &nn::DecoderShape::latent_rank) != nullptr) {
    shape.attention_scale = values.number("attention_scale");
  }
  if (traits_.rope_by_pairs) {
    shape.global_heads.rotary_share = values.number("global_rotary_share");
  }
  if (has_further_layers(traits_)) {
    shape.further_layers = values.integer("further_layers");
  }
  for (const DecoderProperty& property : traits_.properties) {
    for (const DecoderMember& member : property.members) {
      set_member(shape, member, values.all().at(property.key));
    }
  }
  if (const DecoderVariant* const variant = variant_of(traits_, sizes)) {
    for (const auto& [member, value] : variant->members) {
      set_member(shape, member, value);
    }
  }
  return shape;
}

std::vector<ModelKey> DecoderFamily::keys() const {
  const auto size = [](std::int64_t value) { return ModelValue(value); };
  constexpr auto wide = static_cast<double>(widest);
  const nn::DecoderShape& initial = traits_.shape;
  std::vector<ModelKey> all = {
      {"dim", size(256), "Width of the hidden state.", from(1, wide)},
      {"layers", size(8), "Number of transformer layers.", from(1, 10000)},
      {"heads", size(8), "Query heads of the attention.", from(1, most)},
      {"kv_heads", size(0), "Key and value heads; must divide `heads`. 0: as many as `heads`.",
       from(0, most)},
      {"head_dim", size(0), "Width of a head, even. 0: `dim / heads`.", from(0, wide)},
      {"ffn_dim", size(0),
       "Width of the feed-forward part. 0: 8/3 of `dim`, rounded up to a multiple of 64.",
       from(0, wide)},
      {"rope_theta", initial.rope_theta, "Base of the rotary embedding's wavelengths.", positive},
      {"norm_eps", initial.norm_eps, "The epsilon of RMSNorm.", positive},
      {"tie_embeddings", initial.tie_embeddings,
       "Use the token embedding as the output matrix too."}};
  if (traits_.scaled_rope) {
    std::ranges::copy(rope_keys(), std::back_inserter(all));
  }
  if (traits_.partial_rope) {
    all.push_back({"rotary_share",
                   traits_.absent.rotary_share,
                   "The part of a head that is rotated: its first features.",
                   {.low = 0, .high = 1, .low_open = true}});
  }
  if (lists_layers(traits_)) {
    all.push_back({"global_layers", std::vector<std::int64_t>(),
                   "Further layers without a window, from 0.", from(0, most)});
  }
  if (traits_.rope_by_layers) {
    all.push_back({"local_rope_theta", initial.local_rope_theta,
                   "The base of the rotary embedding in layers with a window.", positive});
  }
  if (traits_.rope_by_pairs) {
    all.push_back(
        {"global_rotary_share", 0.0,
         "The part of the pairs of a head's features that layers without a window rotate: "
         "the first ones. 0: all, as other layers do.",
         from(0, 1)});
  }
  if (has_further_layers(traits_)) {
    all.push_back({"further_layers", size(0),
                   "Layers that predict tokens after the next one, by further losses "
                   "(`train.further_weight`). 0: none.",
                   from(0, static_cast<double>(most_further_layers))});
  }
  if (traits_.rope_growth) {
    all.push_back({"query_growth", 0.0,
                   "Queries are multiplied by 1 + this * ln(1 + periods before them). 0: they are "
                   "not.",
                   from(0, 1e6)});
    all.push_back({"query_growth_period", size(1), "Positions of such a period.",
                   from(1, static_cast<double>(most_positions))});
  }
  if (property_of(traits_, &nn::DecoderShape::latent_rank) != nullptr) {
    all.push_back(
        {"attention_scale", 0.0,
         "Scores of attention are multiplied by it. 0: by 1 / sqrt(plain_dim + rotated_dim).",
         from(0, 1e6)});
  }
  if (const DecoderVariants& variants = traits_.variants; !variants.all.empty()) {
    ModelKey form{"form", variants.all.front().name, variants.doc};
    for (const DecoderVariant& variant : variants.all) {
      form.choices.push_back(variant.name);
    }
    all.push_back(std::move(form));
  }
  for (const DecoderProperty& property : traits_.properties) {
    all.push_back({property.key, property.initial, property.doc, property.range,
                   words_of(property.members.front())});
  }
  return all;
}

std::vector<ModelProblem> DecoderFamily::complete(ModelSizes& sizes) const {
  const nn::DecoderShape shape = shape_of(sizes);
  std::vector<ModelProblem> problems;
  for (const ValueConflict& misfit : misfits_of(shape)) {
    problems.push_back({misfit.keys, misfit.text});
  }
  const DecoderVariant* const variant = variant_of(traits_, sizes);
  const KeyHeads key_heads = variant == nullptr ? KeyHeads::counted : variant->key_heads;
  const std::int64_t usual = key_heads == KeyHeads::one ? 1 : shape.heads;
  if (key_heads != KeyHeads::counted && shape.kv_heads > 0 && shape.kv_heads != usual) {
    problems.push_back({{"kv_heads", "form"},
                        fmt::format("must be {} or 0 with model.form = \"{}\" (got {})", usual,
                                    variant->name, shape.kv_heads)});
  }
  const DecoderProperty* const global = property_of(traits_, &nn::DecoderShape::global_layers);
  if (global != nullptr && has_last_global(*global) && shape.layers > 0 &&
      shape.has_window(shape.layers - 1)) {
    problems.push_back({{global->key, "layers"},
                        fmt::format("must have the last layer, which has no window here (got {} of "
                                    "{} layers)",
                                    shape.global_layers.size(), shape.layers)});
  }
  const std::int64_t ffn = (8 * shape.dim / 3 + 63) / 64 * 64;
  sizes.values.set("kv_heads", shape.kv_heads > 0 ? shape.kv_heads : usual);
  sizes.values.set("head_dim", shape.head_extent());
  sizes.values.set("ffn_dim", shape.ffn_dim > 0 ? shape.ffn_dim : ffn);
  if (!hub_key(traits_, "expert_dim", "").empty()) {
    sizes.values.set("expert_dim",
                     shape.expert_dim > 0 ? shape.expert_dim : sizes.values.integer("ffn_dim"));
  }
  return problems;
}

std::string DecoderFamily::describe(const ModelSizes& sizes) const {
  const nn::DecoderShape shape = shape_of(sizes);
  std::string text = fmt::format("dim {}, {}, {} ({} of keys and values), ffn {}", shape.dim,
                                 count_text(shape.layers, "layer"), count_text(shape.heads, "head"),
                                 shape.kv_heads, shape.ffn_dim);
  if (const std::int64_t recurrent = layers_of_kind(shape, nn::LayerKind::recurrent);
      recurrent > 0) {
    text += fmt::format(", {} recurrent", count_text(recurrent, "layer"));
  }
  if (shape.window > 0) {
    std::int64_t local = 0;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      local += shape.has_window(layer) ? 1 : 0;
    }
    text += fmt::format(", window {} in {} layers", shape.window, local);
  }
  if (shape.shared_key_layers > 0) {
    text += fmt::format(", {} with keys of others", count_text(shape.shared_key_layers, "layer"));
  }
  if (shape.streams.count > 1) {
    text += fmt::format(", {} streams", shape.streams.count);
  }
  if (shape.further_layers > 0) {
    text += fmt::format(", {} of further tokens", count_text(shape.further_layers, "layer"));
  }
  if (shape.experts > 0) {
    text += fmt::format(", {} of {} experts ({} wide) in {} layers", shape.experts_per_token,
                        shape.experts, shape.expert_extent(), layers_with_experts(shape));
    text += shape.shared_extent() > 0
                ? fmt::format(" beside one of all tokens ({} wide)", shape.shared_extent())
                : std::string();
  }
  return text;
}

namespace {

/// Those of a layer's attention.
double attention_parameters(const nn::DecoderShape& shape, std::int64_t layer) {
  const double dim = number(shape.dim);
  const double heads = number(shape.heads);
  if (shape.latent_rank > 0) {
    const double rank = number(shape.latent_rank);
    const double query_rank = number(shape.query_rank);
    const double queries = heads * number(shape.plain_dim + shape.rotated_dim);
    const double made = query_rank > 0 ? query_rank * (dim + 1 + queries) : dim * queries;
    const double biases = shape.bias ? query_rank + rank + number(shape.rotated_dim) + dim : 0;
    return made + dim * (rank + number(shape.rotated_dim)) + rank +
           rank * heads * number(shape.plain_dim + shape.value_extent()) +
           heads * number(shape.value_extent()) * dim + biases;
  }
  const bool own_keys = shape.key_layer(layer) == layer;
  const double width = number(shape.head_extent(layer));
  const double queries = heads * width;
  const double keys = own_keys ? number(shape.key_heads(layer)) * width : 0;
  const double projected = (shape.projects_values(layer) ? 2 : 1) * keys;
  double all = dim * ((shape.attention_gate ? 3 : 2) * queries + projected);
  all += shape.bias ? (shape.attention_gate ? 2 : 1) * queries + projected : 0;
  all += (shape.output_bias ? dim : 0) + (shape.sinks ? heads : 0);
  if (!shape.head_norm_weight || shape.query_key_norm == nn::HeadNorm::none) {
    return all;
  }
  return all + (shape.head_norm_bias ? 2 : 1) * (shape.query_key_norm == nn::HeadNorm::shared
                                                     ? (own_keys ? 2 : 1) * width
                                                     : queries + keys);
}

double norms_of_block(const nn::DecoderShape& shape) {
  if (shape.one_part) {
    return 1;
  }
  const double of_inputs = shape.parallel_block && !shape.parallel_norms ? 1 : 2;
  return (shape.norm_inputs ? of_inputs : 0) + (shape.norm_results ? 2 : 0);
}

/// Those of a layer's experts, but for biases.
double expert_parameters(const nn::DecoderShape& shape) {
  const double dim = number(shape.dim);
  const double latent = number(shape.expert_form.latent_dim);
  const double matrices = shape.gated ? 3 : 2;
  const double shared = number(shape.shared_extent());
  const double bias = shape.ffn_bias ? 1 : 0;
  const double projections = latent > 0 ? 2 * dim * latent + bias * (dim + latent) : 0;
  return number(shape.experts) *
             (matrices * (latent > 0 ? latent : dim) * number(shape.expert_extent()) + dim) +
         matrices * dim * shared + (shared > 0 ? bias * ((matrices - 1) * shared + dim) : 0) +
         projections + (shape.shared_expert_gate && shared > 0 ? dim : 0);
}

double dense_parameters(const nn::DecoderShape& shape, std::int64_t layer) {
  const double dim = number(shape.dim);
  const double ffn = number(shape.ffn_extent(layer));
  const double matrices = shape.gated ? 3 : 2;
  const double learned = shape.activation == nn::Activation::xielu ? 2 : 0;
  return matrices * dim * ffn + (shape.ffn_bias ? (matrices - 1) * ffn + dim : 0) + learned;
}

/// Those of streams, embeddings of layers and what is added beside attention.
double linked_parameters(const nn::DecoderShape& shape) {
  const double dim = number(shape.dim);
  const double layers = number(shape.layers);
  const double norm = shape.norm_weight ? dim * (shape.norm_bias ? 2 : 1) : 0;
  double all = 0;
  if (shape.streams.count > 1) {
    const double count = number(shape.streams.count);
    all += 2 * (count - 1) * dim * dim +
           layers * (dim + count * count + count * count * count + count * dim + norm);
  }
  if (shape.residual_rank > 0) {
    all += layers * (2 * dim * number(shape.residual_rank) + norm);
  }
  if (shape.layer_embedding_dim > 0) {
    const double features = number(shape.layer_embedding_dim);
    all += layers * features * (number(shape.layer_embedding_vocab) + dim) +
           features * (norm > 0 ? norm / dim : 0) + layers * (2 * dim * features + norm);
  }
  return all;
}

double biases_of_experts(const nn::DecoderShape& shape) {
  const double of_each =
      (shape.expert_form.bias
           ? (shape.gated ? 2 : 1) * number(shape.expert_extent()) + number(shape.dim)
           : 0) +
      (shape.expert_form.logit_bias ? 1 : 0);
  return number(shape.experts) * of_each;
}

}  // namespace

double DecoderFamily::parameters(const ModelSizes& sizes) const {
  const nn::DecoderShape shape = shape_of(sizes);
  const double dim = number(shape.dim);
  const double norm = shape.norm_weight ? dim * (shape.norm_bias ? 2 : 1) : 0;
  const double recurrent = number(layers_of_kind(shape, nn::LayerKind::recurrent));
  const double mixture = expert_parameters(shape) + biases_of_experts(shape);
  double parts = recurrent > 0 ? recurrent * recurrent_parameters(shape) : 0;
  for (std::int64_t layer = 0; layer < shape.layers + shape.further_layers; ++layer) {
    parts += shape.layer_kind(layer) == nn::LayerKind::attention
                 ? attention_parameters(shape, layer)
                 : 0;
    parts += !shape.has_feed_forward(layer) ? 0
             : shape.has_experts(layer)     ? mixture
                                            : dense_parameters(shape, layer);
    parts += norms_of_block(shape) * norm;
  }
  // Two norms before the projection of both, and one for the head.
  parts += number(shape.further_layers) * (2 * dim * dim + 3 * norm);
  return number(shape.vocab) * dim * (shape.tie_embeddings ? 1 : 2) +
         (shape.head_bias ? number(shape.vocab) : 0) + parts + linked_parameters(shape) + norm;
}

std::shared_ptr<nn::LanguageModel> DecoderFamily::build(const ModelSizes& sizes,
                                                        double dropout) const {
  nn::DecoderShape shape = shape_of(sizes);
  shape.dropout = dropout;
  return std::make_shared<nn::DecoderLM>(shape);
}

std::shared_ptr<nn::DecoderClassifier> DecoderFamily::build_classifier(const ModelSizes& sizes,
                                                                       std::int64_t classes,
                                                                       std::int64_t padding) const {
  return std::make_shared<nn::DecoderClassifier>(shape_of(sizes), classes, padding);
}

namespace {

/// Recurrent layers are split by heads; one key head is whole on each rank, with all that uses it.
void add_recurrent_split(const nn::DecoderShape& shape, TensorSplit& split) {
  const nn::RecurrentOptions& options = shape.recurrent;
  if (!shape.has_kind(nn::LayerKind::recurrent)) {
    return;
  }
  const std::string layer = "model.layers.*.recurrent.";
  if (options.rule == nn::RecurrentRule::convolution) {
    split.columns.push_back(layer + "{q,k,v}_proj");
    split.columns.push_back(layer + "conv");
    split.rows.push_back(layer + "o_proj");
  } else if (options.key_heads > 1) {
    split.columns.push_back(layer + "{q,k,v}_proj");
    split.columns.push_back(layer +
                            (options.gate_rank > 0 ? "{gate,decay}_b_proj" : "{gate,decay}_proj"));
    split.columns.push_back(layer + "{q,k,v}_conv");
    split.columns.push_back(layer + "steps");
    split.columns.push_back(layer +
                            (options.rule == nn::RecurrentRule::delta ? "strength_proj" : "norm"));
    split.rows.push_back(layer + "o_proj");
  }
}

}  // namespace

TensorSplit DecoderFamily::tensor_split(const ModelSizes& sizes) const {
  const nn::DecoderShape shape = shape_of(sizes);
  TensorSplit split{.rows = {"model.embed_tokens"}, .logits = "lm_head"};
  add_recurrent_split(shape, split);
  // A norm over all heads needs all of them: such an attention is whole on each rank.
  if (!shape.has_kind(nn::LayerKind::attention)) {
    // there is none
  } else if (shape.latent_rank > 0) {
    split.columns.emplace_back(shape.query_rank > 0 ? "model.layers.*.self_attn.{q,kv}_b_proj"
                                                    : "model.layers.*.self_attn.{q,kv_b}_proj");
    split.rows.emplace_back("model.layers.*.self_attn.o_proj");
  } else if (shape.query_key_norm != nn::HeadNorm::whole) {
    split.columns.emplace_back("model.layers.*.self_attn.{q,k,v}_proj");
    split.rows.emplace_back("model.layers.*.self_attn.o_proj");
    if (shape.query_key_norm == nn::HeadNorm::each) {
      split.columns.emplace_back("model.layers.*.self_attn.{q,k}_norm");
    }
    if (shape.attention_gate) {
      split.columns.emplace_back("model.layers.*.self_attn.gate_proj");
    }
  }
  if (first_layer(shape, false) >= 0) {
    split.columns.emplace_back(shape.gated ? "model.layers.*.mlp.{gate,up}_proj"
                                           : "model.layers.*.mlp.up_proj");
    split.rows.emplace_back("model.layers.*.mlp.down_proj");
  }
  if (first_layer(shape, true) >= 0) {
    split.rows.emplace_back("model.layers.*.mlp.experts");
  }
  return split;
}

std::vector<HubTensor> DecoderFamily::tensors(const ModelSizes& sizes) const {
  return hub_tensors(traits_, shape_of(sizes), variant_of(traits_, sizes));
}

std::vector<std::string> DecoderFamily::ignored_tensors() const { return traits_.ignored_tensors; }

std::vector<std::string> DecoderFamily::unused_tensors(const ModelSizes& sizes) const {
  return models::unused_tensors(traits_, shape_of(sizes));
}

std::vector<std::string> DecoderFamily::further_tensors(const ModelSizes& sizes) const {
  return models::further_tensors(traits_, shape_of(sizes));
}

GgufForm DecoderFamily::gguf() const { return gguf_form(traits_); }

ModelSizes DecoderFamily::gguf_sizes(const ModelSizes& sizes) const {
  return models::gguf_sizes(traits_, sizes, shape_of(sizes));
}
std::vector<HubTensor> DecoderFamily::gguf_tensors(const ModelSizes& sizes) const {
  return traits_.gguf.form.architecture.empty()
             ? std::vector<HubTensor>()
             : models::gguf_tensors(traits_, shape_of(sizes), variant_of(traits_, sizes));
}

std::vector<std::string> DecoderFamily::packed_forms() const {
  return traits_.experts && traits_.experts->packed ? std::vector<std::string>{"mxfp4"}
                                                    : std::vector<std::string>{};
}

ModelFamily::Layers DecoderFamily::layers(const ModelSizes& sizes) const {
  const std::string key = hub_size(traits_, "layers");
  const DecoderProperty* const pattern = pattern_of(traits_);
  const std::int64_t further =
      has_further_layers(traits_) ? sizes.values.integer("further_layers") : 0;
  return {"model.layers.", key.empty() && pattern != nullptr ? pattern->hub : key,
          sizes.values.integer("layers") + further};
}

std::vector<SizedTensor> DecoderFamily::sized_tensors(const ModelSizes& sizes) const {
  return models::sized_tensors(traits_, shape_of(sizes));
}

}  // namespace tessera::models
