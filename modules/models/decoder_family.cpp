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

namespace tessera::models {
namespace {

// The largest sizes of a config and of a config.json.
constexpr std::int64_t widest = std::int64_t{1} << 24;
constexpr std::int64_t most = 100000;
constexpr std::int64_t most_positions = std::int64_t{1} << 40;

constexpr std::string_view full = "full_attention";
constexpr std::string_view sliding = "sliding_attention";

ModelRange from(double low, double high) { return {.low = low, .high = high}; }
constexpr ModelRange positive{.low = 0, .low_open = true};

using Kind = ops::RotaryScaling::Kind;
struct RopeKind {
  Kind kind;
  const char* hub;
  const char* key;
};
constexpr RopeKind rope_kinds[] = {{Kind::none, "default", "none"},
                                   {Kind::linear, "linear", "linear"},
                                   {Kind::llama3, "llama3", "llama3"},
                                   {Kind::yarn, "yarn", "yarn"}};

double number(std::int64_t value) { return static_cast<double>(value); }

std::string layer_name(std::int64_t layer) { return fmt::format("model.layers.{}.", layer); }

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
           "With `llama3` and `yarn`: the longest sequence of pretraining.", from(0, 0x1p40)},
          {"rope_low", 1.0,
           "A frequency that turns at most so often within those positions is divided.", positive},
          {"rope_high", 4.0, "One that turns at least so often stays.", positive},
          {"rope_amplitude", 1.0, "Factor of cosines and sines; `yarn` has one above 1.", positive},
          {"rope_whole_dims", true, "With `yarn`: bounds between dims are rounded outwards."}};
}

ops::RotaryScaling scaling_of(const ModelValues& values) {
  ops::RotaryScaling scaling;
  for (const RopeKind& known : rope_kinds) {
    if (values.text("rope_scaling") == known.key) {
      scaling.kind = known.kind;
    }
  }
  scaling.factor = values.number("rope_factor");
  scaling.original_positions = values.number("rope_original_positions");
  scaling.low = values.number("rope_low");
  scaling.high = values.number("rope_high");
  scaling.amplitude = values.number("rope_amplitude");
  scaling.whole_dims = values.flag("rope_whole_dims");
  return scaling;
}

/// The amplitude that transformers assumes, as HubConfig::rope reads it.
double yarn_amplitude(double factor) { return factor > 1 ? 0.1 * std::log(factor) + 1 : 1; }

/// rope_scaling of config.json without its brackets.
std::string scaling_json(const ops::RotaryScaling& scaling) {
  const auto text = [](const char* key, double value) {
    return fmt::format(R"(, "{}": {})", key, HubKey(key, value).json);
  };
  std::string json;
  for (const RopeKind& known : rope_kinds) {
    if (known.kind == scaling.kind) {
      json += fmt::format(R"("rope_type": "{}")", known.hub);
    }
  }
  if (scaling.kind != Kind::none) {
    json += text("factor", scaling.factor);
  }
  if (scaling.kind == Kind::llama3) {
    json += text("low_freq_factor", scaling.low) + text("high_freq_factor", scaling.high);
  } else if (scaling.kind == Kind::yarn) {
    // What transformers assumes is left out, as it does.
    json += scaling.low == 1 ? "" : text("beta_slow", scaling.low);
    json += scaling.high == 32 ? "" : text("beta_fast", scaling.high);
    json += scaling.amplitude == yarn_amplitude(scaling.factor)
                ? ""
                : text("attention_factor", scaling.amplitude);
    json += scaling.whole_dims ? "" : R"(, "truncate": false)";
  }
  if (scaling.kind == Kind::llama3 || scaling.kind == Kind::yarn) {
    json += fmt::format(R"(, "original_max_position_embeddings": {})",
                        static_cast<std::int64_t>(scaling.original_positions));
  }
  return json;
}

/// rope_parameters of config.json.
std::string rope_json(double theta, const ops::RotaryScaling& scaling) {
  return fmt::format(R"({{"rope_theta": {}, {}}})", HubKey("rope_theta", theta).json,
                     scaling_json(scaling));
}

/// Values that do not fit together, with the names of [model] and those of config.json.
struct ValueConflict {
  std::vector<std::string> keys;
  std::string text;
  std::string hub;
};

std::vector<ValueConflict> expert_misfits(const nn::DecoderShape& shape) {
  std::vector<ValueConflict> found;
  if (shape.experts_per_token > shape.experts) {
    const std::string text =
        fmt::format("a token cannot have more experts than there are ({} experts, {} per token)",
                    shape.experts, shape.experts_per_token);
    found.push_back({{"experts_per_token", "experts"}, text, "num_experts_per_tok: " + text});
  } else if (shape.experts > 0 &&
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

std::vector<ValueConflict> misfits_of(const nn::DecoderShape& shape) {
  std::vector<ValueConflict> found;
  if (shape.kv_heads > 0 && shape.heads % shape.kv_heads != 0) {
    found.push_back({{"kv_heads", "heads"},
                     fmt::format("must divide model.heads ({} heads, {} kv_heads)", shape.heads,
                                 shape.kv_heads),
                     fmt::format("num_key_value_heads {} does not divide num_attention_heads {}",
                                 shape.kv_heads, shape.heads)});
  }
  if (shape.head_dim == 0 && shape.dim % shape.heads != 0) {
    found.push_back({{"heads", "dim"},
                     fmt::format("must divide model.dim (dim {}, {} heads); or set model.head_dim",
                                 shape.dim, shape.heads),
                     fmt::format("num_attention_heads {} does not divide hidden_size {}",
                                 shape.heads, shape.dim)});
  } else if (shape.head_extent() % 2 != 0) {
    found.push_back(
        {{"head_dim", "heads", "dim"},
         fmt::format("the width of a head must be even for the rotary embedding (got {})",
                     shape.head_extent()),
         fmt::format("head_dim {} is odd; the rotary embedding needs pairs", shape.head_extent())});
  }
  const ops::RotaryScaling& rope = shape.rope_scaling;
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
  std::ranges::copy(expert_misfits(shape), std::back_inserter(found));
  return found;
}

/// A size that config.json has under one of the property's names.
std::int64_t read_size(HubConfig& config, const DecoderProperty& property, std::int64_t absent) {
  const auto limit = static_cast<std::int64_t>(property.range.high.value_or(0x1p40));
  constexpr std::int64_t none = -1;
  const std::int64_t other = property.also.empty() ? none : config.size(property.also, limit, none);
  const std::int64_t value = config.size(property.hub, limit, other == none ? absent : other);
  if (other != none && value != other) {
    config.problem(fmt::format("{} {} and {} {} are not one number", property.hub, value,
                               property.also, other));
  }
  return value;
}

std::int64_t layers_with_experts(const nn::DecoderShape& shape) {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    count += shape.has_experts(layer) ? 1 : 0;
  }
  return count;
}

/// The first layer that has experts, or that has none; -1: there is none.
std::int64_t first_layer(const nn::DecoderShape& shape, bool with_experts) {
  std::int64_t layer = 0;
  while (layer < shape.layers && shape.has_experts(layer) != with_experts) {
    ++layer;
  }
  return layer < shape.layers ? layer : -1;
}

/// Where a folder has the experts of a layer: one by one, or as transformers 5 has them in memory.
void add_experts(std::vector<HubTensor>& all, const std::string& layer, const HubExperts& names) {
  const std::string own = layer + "mlp.experts.";
  all.push_back({.parameter = layer + "mlp.gate.weight", .tensor = layer + names.router});
  if (!names.bias.empty()) {
    all.push_back({.parameter = layer + "mlp.choice_bias", .tensor = layer + names.bias});
  }
  for (const auto& [matrix, stored] :
       {std::pair{"gate_proj", &names.gate}, {"up_proj", &names.up}, {"down_proj", &names.down}}) {
    all.push_back({.parameter = own + matrix, .tensor = layer + *stored, .stacked = true});
    const std::string shared = std::string(matrix) + ".weight";
    all.push_back({.parameter = layer + "mlp.shared_expert." + shared,
                   .tensor = layer + names.shared + shared});
  }
  const std::string both = own + "gate_up_proj";
  all.push_back({.parameter = own + "gate_proj", .tensor = both, .part = 0, .parts = 2, .dim = 1});
  all.push_back({.parameter = own + "up_proj", .tensor = both, .part = 1, .parts = 2, .dim = 1});
}

/// A list of words without quotes in them as JSON.
std::string json_list(const std::vector<std::string>& words) {
  std::string json;
  for (const std::string& word : words) {
    json += fmt::format(R"({}"{}")", json.empty() ? "" : ",", word);
  }
  return "[" + json + "]";
}

}  // namespace

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
    shape.rope_scaling = scaling_of(values);
  }
  for (const DecoderProperty& property : traits_.properties) {
    for (const DecoderProperty::Member& member : property.members) {
      if (const auto* const flag = std::get_if<bool nn::DecoderShape::*>(&member)) {
        shape.*(*flag) = values.flag(property.key);
      } else if (const auto* const size = std::get_if<std::int64_t nn::DecoderShape::*>(&member)) {
        shape.*(*size) = values.integer(property.key);
      } else if (const auto* const list =
                     std::get_if<std::vector<std::int64_t> nn::DecoderShape::*>(&member)) {
        shape.*(*list) = values.integers(property.key);
      } else {
        shape.*std::get<double nn::DecoderShape::*>(member) = values.number(property.key);
      }
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
  for (const DecoderProperty& property : traits_.properties) {
    all.push_back({property.key, property.initial, property.doc, property.range});
  }
  return all;
}

std::vector<ModelProblem> DecoderFamily::complete(ModelSizes& sizes) const {
  const nn::DecoderShape shape = shape_of(sizes);
  std::vector<ModelProblem> problems;
  for (const ValueConflict& misfit : misfits_of(shape)) {
    problems.push_back({misfit.keys, misfit.text});
  }
  const std::int64_t ffn = (8 * shape.dim / 3 + 63) / 64 * 64;
  sizes.values.set("kv_heads", shape.kv_heads > 0 ? shape.kv_heads : shape.heads);
  sizes.values.set("head_dim", shape.head_extent());
  sizes.values.set("ffn_dim", shape.ffn_dim > 0 ? shape.ffn_dim : ffn);
  if (!hub_key("expert_dim", "").empty()) {
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
  if (shape.window > 0) {
    std::int64_t local = 0;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      local += shape.has_window(layer) ? 1 : 0;
    }
    text += fmt::format(", window {} in {} layers", shape.window, local);
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

double DecoderFamily::parameters(const ModelSizes& sizes) const {
  const nn::DecoderShape shape = shape_of(sizes);
  const double dim = number(shape.dim);
  const double queries = number(shape.heads) * number(shape.head_dim);
  const double keys = number(shape.kv_heads) * number(shape.head_dim);
  const double ffn = number(shape.ffn_dim);
  const double sparse = number(layers_with_experts(shape));
  double layer = dim * 2 * (queries + keys);
  layer += shape.bias ? queries + 2 * keys : 0;
  layer += shape.output_bias ? dim : 0;
  layer += shape.query_key_norm ? 2 * number(shape.head_dim) : 0;
  layer += (shape.norm_results ? 4 : 2) * dim;
  const double dense = 3 * dim * ffn + (shape.ffn_bias ? 2 * ffn + dim : 0);
  const double mixture = number(shape.experts) * dim * (3 * number(shape.expert_extent()) + 1) +
                         3 * dim * number(shape.shared_extent()) +
                         (shape.shared_expert_gate && shape.shared_extent() > 0 ? dim : 0);
  return number(shape.vocab) * dim * (shape.tie_embeddings ? 1 : 2) + number(shape.layers) * layer +
         (number(shape.layers) - sparse) * dense + sparse * mixture + dim;
}

std::shared_ptr<nn::LanguageModel> DecoderFamily::build(const ModelSizes& sizes,
                                                        double dropout) const {
  nn::DecoderShape shape = shape_of(sizes);
  shape.dropout = dropout;
  return std::make_shared<nn::DecoderLM>(shape);
}

ModelSizes DecoderFamily::read(HubConfig& config) const {
  for (const FixedHubKey& fixed : traits_.fixed_keys) {
    config.only(fixed.key, fixed.json, fixed.reason);
  }
  if (traits_.experts) {
    config.only("mlp_layer_types", "null", "other keys say which layers have experts");
  } else {
    config.only_entries("mlp_layer_types", "\"dense\"", "every feed-forward part is dense");
  }
  config.ignore(traits_.ignored_keys);
  ModelSizes sizes;
  sizes.vocab = config.size("vocab_size", widest);
  const std::int64_t dim = config.size("hidden_size", widest);
  const std::int64_t heads = config.size("num_attention_heads", most);
  const std::int64_t given_head = config.size("head_dim", widest, traits_.absent.head_dim);
  sizes.max_positions =
      config.size("max_position_embeddings", most_positions, traits_.absent.max_positions);
  sizes.values.set("dim", dim);
  sizes.values.set("layers", config.size("num_hidden_layers", most));
  sizes.values.set("heads", heads);
  sizes.values.set("kv_heads", config.size("num_key_value_heads", most, heads));
  sizes.values.set("head_dim", given_head);
  sizes.values.set("ffn_dim", config.size("intermediate_size", widest));
  sizes.values.set("norm_eps", config.positive("rms_norm_eps", traits_.absent.norm_eps));
  sizes.values.set("tie_embeddings",
                   config.flag("tie_word_embeddings", traits_.absent.tie_embeddings));
  read_properties(config, sizes);
  read_rope(config, sizes);
  check_layer_types(config, sizes);
  if (config.sound()) {
    for (const ValueConflict& misfit : misfits_of(shape_of(sizes))) {
      config.problem(misfit.hub);
    }
  }
  sizes.values.set("head_dim", given_head > 0 ? given_head : dim / heads);
  return sizes;
}

void DecoderFamily::read_rope(HubConfig& config, ModelSizes& sizes) const {
  std::vector<std::string> kinds = {"default"};
  if (traits_.scaled_rope) {
    kinds.clear();
    for (const RopeKind& known : rope_kinds) {
      kinds.emplace_back(known.hub);
    }
  }
  const HubRope rope = config.rope(kinds, traits_.absent.rope_theta,
                                   traits_.shape.local_rope_theta > 0 ? std::string(full) : "");
  sizes.values.set("rope_theta", rope.theta);
  if (traits_.shape.local_rope_theta > 0) {
    const double given = sizes.values.number("local_rope_theta");
    sizes.values.set("local_rope_theta", config.rope_theta_of(std::string(sliding), given));
  }
  if (!traits_.scaled_rope) {
    return;
  }
  for (const RopeKind& known : rope_kinds) {
    if (rope.kind == known.hub) {
      sizes.values.set("rope_scaling", std::string(known.key));
    }
  }
  sizes.values.set("rope_factor", rope.factor);
  sizes.values.set("rope_original_positions", rope.original_positions);
  sizes.values.set("rope_low", rope.low);
  sizes.values.set("rope_high", rope.high);
  sizes.values.set("rope_amplitude", rope.amplitude);
  sizes.values.set("rope_whole_dims", rope.whole_dims);
}

void DecoderFamily::read_properties(HubConfig& config, ModelSizes& sizes) const {
  for (const DecoderProperty& property : traits_.properties) {
    const bool null = config.is_null(property.hub);
    if (const bool* const flag = std::get_if<bool>(&property.absent)) {
      sizes.values.set(property.key, config.flag(property.hub, !null && *flag));
    } else if (const auto* const size = std::get_if<std::int64_t>(&property.absent)) {
      sizes.values.set(property.key, read_size(config, property, null ? std::int64_t{0} : *size));
    } else if (std::holds_alternative<std::vector<std::int64_t>>(property.absent)) {
      sizes.values.set(property.key, config.numbers(property.hub, most_positions));
    } else {
      const double absent = null ? 0 : std::get<double>(property.absent);
      sizes.values.set(property.key, config.positive(property.hub, absent));
    }
  }
}

void DecoderFamily::check_layer_types(HubConfig& config, ModelSizes& sizes) const {
  const std::vector<std::string> types = config.texts("layer_types");
  if (types.empty()) {
    return;
  }
  const auto period = std::ranges::find(traits_.properties, "global_every", &DecoderProperty::key);
  if (period != traits_.properties.end()) {
    const auto first = std::ranges::find(types, full);
    sizes.values.set("global_every",
                     first == types.end() ? std::int64_t{0} : first - types.begin() + 1);
  }
  const nn::DecoderShape shape = shape_of(sizes);
  if (std::ssize(types) != shape.layers) {
    config.problem(fmt::format("layer_types: expected one type for each of {} layers, got {}",
                               shape.layers, types.size()));
    return;
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string_view expected = shape.has_window(layer) ? sliding : full;
    const std::string& type = types[static_cast<std::size_t>(layer)];
    if (type != expected) {
      config.problem(fmt::format("layer_types {} is not supported: layer {} must have \"{}\"",
                                 shown(json_list(types), 60), layer, expected));
      return;
    }
  }
}

std::vector<HubKey> DecoderFamily::write(const ModelSizes& sizes) const {
  const nn::DecoderShape shape = shape_of(sizes);
  const bool local = traits_.shape.local_rope_theta > 0;
  std::string rope = rope_json(shape.rope_theta, shape.rope_scaling);
  if (traits_.partial_rope) {
    rope.insert(1, R"("partial_rotary_factor": 1.0, )");
  }
  std::vector<HubKey> all = {
      {"vocab_size", shape.vocab},
      {"hidden_size", shape.dim},
      {"intermediate_size", shape.ffn_dim},
      {"num_hidden_layers", shape.layers},
      {"num_attention_heads", shape.heads},
      {"num_key_value_heads", shape.kv_heads},
      {"head_dim", shape.head_dim},
      {"rms_norm_eps", shape.norm_eps},
      // transformers 4 reads rope_theta and rope_scaling, transformers 5 rope_parameters.
      {"rope_theta", shape.rope_theta},
      HubKey::raw("rope_parameters",
                  local ? fmt::format(R"({{"{}": {}, "{}": {}}})", full, rope, sliding,
                                      rope_json(shape.local_rope_theta, {}))
                        : rope),
      {"tie_word_embeddings", shape.tie_embeddings},
      {"max_position_embeddings", sizes.max_positions}};
  if (traits_.scaled_rope) {
    all.push_back(
        HubKey::raw("rope_scaling", shape.rope_scaling.kind == Kind::none
                                        ? "null"
                                        : fmt::format("{{{}}}", scaling_json(shape.rope_scaling))));
  }
  for (const DecoderProperty& property : traits_.properties) {
    const ModelValues& values = sizes.values;
    if (std::holds_alternative<bool>(property.initial)) {
      all.emplace_back(property.hub, values.flag(property.key));
    } else if (std::holds_alternative<std::int64_t>(property.initial)) {
      const std::int64_t value = values.integer(property.key);
      all.push_back(value == 0 ? HubKey::raw(property.hub, "null") : HubKey(property.hub, value));
      if (!property.also.empty()) {
        all.emplace_back(property.also, value);
      }
    } else if (std::holds_alternative<std::vector<std::int64_t>>(property.initial)) {
      all.push_back(HubKey::raw(
          property.hub, fmt::format("[{}]", fmt::join(values.integers(property.key), ", "))));
    } else {
      const double value = values.number(property.key);
      const bool whole = property.whole && value == std::floor(value) && std::abs(value) < 0x1p53;
      all.push_back(value == 0 ? HubKey::raw(property.hub, "null")
                    : whole    ? HubKey(property.hub, static_cast<std::int64_t>(value))
                               : HubKey(property.hub, value));
    }
  }
  for (const FixedHubKey& fixed : traits_.fixed_keys) {
    if (fixed.written) {
      all.push_back(HubKey::raw(fixed.key, fixed.json));
    }
  }
  if (traits_.layer_types) {
    std::vector<std::string> types;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      types.emplace_back(shape.has_window(layer) ? sliding : full);
    }
    all.push_back(HubKey::raw("layer_types", json_list(types)));
  }
  return all;
}

std::vector<HubTensor> DecoderFamily::tensors(const ModelSizes& sizes) const {
  std::vector<HubTensor> all;
  const nn::DecoderShape shape = shape_of(sizes);
  for (std::int64_t layer = 0; traits_.experts && layer < shape.layers; ++layer) {
    if (shape.has_experts(layer)) {
      add_experts(all, layer_name(layer), *traits_.experts);
    }
  }
  if (!traits_.fused) {
    return all;
  }
  const auto heads = static_cast<int>(shape.heads);
  const auto keys = static_cast<int>(shape.kv_heads);
  for (std::int64_t number = 0; number < shape.layers; ++number) {
    const auto add = [&](const std::string& own, const std::string& stored, int part, int parts,
                         int parts_taken) {
      all.push_back({.parameter = layer_name(number) + own + ".weight",
                     .tensor = layer_name(number) + stored + ".weight",
                     .part = part,
                     .parts = parts,
                     .parts_taken = parts_taken});
    };
    const std::string attention = "self_attn.";
    add(attention + "q_proj", attention + "qkv_proj", 0, heads + 2 * keys, heads);
    add(attention + "k_proj", attention + "qkv_proj", heads, heads + 2 * keys, keys);
    add(attention + "v_proj", attention + "qkv_proj", heads + keys, heads + 2 * keys, keys);
    add("mlp.gate_proj", "mlp.gate_up_proj", 0, 2, 1);
    add("mlp.up_proj", "mlp.gate_up_proj", 1, 2, 1);
  }
  return all;
}

TensorSplit DecoderFamily::tensor_split(const ModelSizes& sizes) const {
  const nn::DecoderShape shape = shape_of(sizes);
  TensorSplit split{.columns = {"model.layers.*.self_attn.{q,k,v}_proj"},
                    .rows = {"model.embed_tokens", "model.layers.*.self_attn.o_proj"},
                    .logits = "lm_head"};
  if (first_layer(shape, false) >= 0) {
    split.columns.emplace_back("model.layers.*.mlp.{gate,up}_proj");
    split.rows.emplace_back("model.layers.*.mlp.down_proj");
  }
  if (first_layer(shape, true) >= 0) {
    split.rows.emplace_back("model.layers.*.mlp.experts");
  }
  return split;
}

ModelFamily::Layers DecoderFamily::layers(const ModelSizes& sizes) const {
  return {"model.layers.", "num_hidden_layers", sizes.values.integer("layers")};
}

std::vector<SizedTensor> DecoderFamily::sized_tensors(const ModelSizes& sizes) const {
  const nn::DecoderShape shape = shape_of(sizes);
  std::vector<SizedTensor> all = {
      {"model.embed_tokens.weight", {"vocab_size", "hidden_size"}, {shape.vocab, shape.dim}},
      {"model.layers.0.self_attn.q_proj.weight",
       {"num_attention_heads times head_dim", "hidden_size"},
       {shape.heads * shape.head_dim, shape.dim}},
      {"model.layers.0.self_attn.k_proj.weight",
       {"num_key_value_heads times head_dim", "hidden_size"},
       {shape.kv_heads * shape.head_dim, shape.dim}}};
  if (const std::int64_t dense = first_layer(shape, false); dense >= 0) {
    all.push_back({layer_name(dense) + "mlp.gate_proj.weight",
                   {"intermediate_size", "hidden_size"},
                   {shape.ffn_dim, shape.dim}});
  }
  if (const std::int64_t sparse = first_layer(shape, true); sparse >= 0) {
    const std::string count = hub_key("experts", "num_local_experts");
    const std::string width = hub_key("expert_dim", "intermediate_size");
    all.push_back({layer_name(sparse) + "mlp.gate.weight",
                   {count, "hidden_size"},
                   {shape.experts, shape.dim}});
    all.push_back({layer_name(sparse) + "mlp.experts.gate_proj",
                   {count, width, "hidden_size"},
                   {shape.experts, shape.expert_extent(), shape.dim}});
    if (shape.shared_expert_dim > 0) {
      all.push_back({layer_name(sparse) + "mlp.shared_expert.gate_proj.weight",
                     {hub_key("shared_expert_dim", ""), "hidden_size"},
                     {shape.shared_expert_dim, shape.dim}});
    }
  }
  return all;
}

std::string DecoderFamily::hub_key(std::string_view key, const std::string& otherwise) const {
  const auto found = std::ranges::find(traits_.properties, key, &DecoderProperty::key);
  return found == traits_.properties.end() ? otherwise : found->hub;
}

}  // namespace tessera::models
