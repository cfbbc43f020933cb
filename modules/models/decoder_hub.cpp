// Decoders in Hugging Face's format: config.json, and the names of a folder's tensors.
module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <ranges>
#include <set>
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

constexpr std::string_view full = "full_attention";
constexpr std::string_view sliding = "sliding_attention";
constexpr std::string_view chunked = "chunked_attention";
constexpr std::string_view layers_prefix = "model.layers.*";

using Kind = ops::RotaryScaling::Kind;

std::string layer_name(std::int64_t layer) { return fmt::format("model.layers.{}.", layer); }

/// The amplitude that transformers assumes, as HubConfig::rope reads it.
double yarn_amplitude(double factor) { return factor > 1 ? 0.1 * std::log(factor) + 1 : 1; }

/// rope_scaling of config.json without its brackets. `stretch`: nn::RotaryOptions'.
/// `amplitude_follows`: the caller writes it.
std::string scaling_json(const ops::RotaryScaling& scaling, double stretch = 0,
                         bool amplitude_follows = false) {
  const auto text = [](const char* key, double value) {
    return fmt::format(R"(, "{}": {})", key, HubKey(key, value).json);
  };
  if (stretch > 0) {
    return R"("rope_type": "dynamic")" + text("factor", stretch);
  }
  std::string json;
  for (const RopeKind& known : rope_kinds) {
    if (known.kind == scaling.kind && json.empty()) {
      json = fmt::format(R"("rope_type": "{}")", known.hub);
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
    json += scaling.amplitude == yarn_amplitude(scaling.factor) || amplitude_follows
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
std::string rope_json(double theta, const std::string& scaling, const std::string& share) {
  return fmt::format(R"({{{}"rope_theta": {}, {}}})", share, HubKey("rope_theta", theta).json,
                     scaling);
}

/// A size that config.json has under one of the property's names.
std::int64_t read_size(HubConfig& config, const DecoderProperty& property, std::int64_t absent) {
  const auto limit = static_cast<std::int64_t>(property.range.high.value_or(0x1p40));
  constexpr std::int64_t none = -1;
  if (!property.none.empty() && config.is_text(property.hub, property.none)) {
    return 0;
  }
  const std::int64_t other = property.also.empty() ? none : config.size(property.also, limit, none);
  const std::int64_t otherwise = other == none ? absent : other;
  const std::int64_t value =
      property.form == HubForm::counts
          ? config.integer(property.hub, property.range.low.value_or(0), limit, otherwise)
          : config.size(property.hub, limit, otherwise);
  if (other != none && value != other) {
    config.problem(fmt::format("{} {} and {} {} are not one number", property.hub, value,
                               property.also, other));
  }
  return value;
}

/// A text of config.json in the word that the property has for it.
std::string read_word(HubConfig& config, const DecoderProperty& property) {
  const bool* const flag = std::get_if<bool>(&property.absent);
  const std::string absent = flag == nullptr ? std::get<std::string>(property.absent)
                             : *flag         ? "true"
                                             : "false";
  const std::string text = config.text(property.hub, "");
  if (text.empty()) {
    const auto null =
        std::ranges::find(property.words, "", &std::pair<std::string, std::string>::first);
    return config.is_null(property.hub) && null != property.words.end() ? null->second : absent;
  }
  std::vector<std::string> known;
  for (const auto& [hub, own] : property.words) {
    if (hub == text) {
      return own;
    }
    known.push_back(hub);
  }
  config.problem(fmt::format("{} \"{}\" is not supported (only {})", property.hub, shown(text),
                             join_words(known)));
  return absent;
}

/// The layers, from 0, that are not in the list; those of the property's default without one.
std::vector<std::int64_t> layers_beside(HubConfig& config, const DecoderProperty& property,
                                        std::int64_t layers) {
  const std::vector<std::int64_t> listed = config.numbers(property.hub, layers - 1);
  if (!config.has(property.hub)) {
    return std::get<std::vector<std::int64_t>>(property.absent);
  }
  std::vector<std::int64_t> others;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (std::ranges::find(listed, layer) == listed.end()) {
      others.push_back(layer);
    }
  }
  return others;
}

/// The layers, from 0, whose number in the list is 0.
std::vector<std::int64_t> zeros_of(HubConfig& config, const DecoderProperty& property,
                                   std::int64_t layers) {
  const std::vector<std::int64_t> marks = config.numbers(property.hub, 1);
  std::vector<std::int64_t> zeros;
  if (!marks.empty() && std::ssize(marks) != layers) {
    config.problem(fmt::format("{}: expected a number for each of {} layers, got {}", property.hub,
                               layers, marks.size()));
  }
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (marks[i] == 0) {
      zeros.push_back(static_cast<std::int64_t>(i));
    }
  }
  return zeros;
}

/// The layers, from 0, whose text in the list is the property's.
std::vector<std::int64_t> marked_layers(HubConfig& config, const DecoderProperty& property,
                                        std::int64_t layers) {
  if (!config.has(property.hub)) {
    config.texts(property.hub);
    return std::get<std::vector<std::int64_t>>(property.absent);
  }
  const std::vector<std::string> marks = config.texts(property.hub);
  std::vector<std::int64_t> marked;
  if (!marks.empty() && std::ssize(marks) != layers) {
    config.problem(fmt::format("{}: expected a text for each of {} layers, got {}", property.hub,
                               layers, marks.size()));
  }
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (marks[i] == property.marks.first) {
      marked.push_back(static_cast<std::int64_t>(i));
    } else if (marks[i] != property.marks.second) {
      config.problem(fmt::format("{} \"{}\" is not supported (only {}, {})", property.hub,
                                 shown(marks[i]), property.marks.first, property.marks.second));
    }
  }
  return marked;
}

/// The word of layer_types for a layer.
std::string_view type_of(const nn::DecoderShape& shape, std::int64_t layer) {
  return shape.has_window(layer) ? sliding : shape.has_chunks(layer) ? chunked : full;
}

/// A list of words without quotes in them as JSON.
std::string json_list(const std::vector<std::string>& words) {
  std::string json;
  for (const std::string& word : words) {
    json += fmt::format(R"({}"{}")", json.empty() ? "" : ",", word);
  }
  return "[" + json + "]";
}

/// The kinds of layers, a letter each. `layers`: how many there are; 0: as many as the list has.
std::string read_pattern(HubConfig& config, const DecoderProperty& property, std::int64_t layers) {
  const auto& absent = std::get<std::string>(property.absent);
  const HubLayers& other = property.layers;
  const std::string attention(1, static_cast<char>(nn::LayerKind::attention));
  const std::int64_t interval =
      other.interval.empty() ? 0 : config.size(other.interval, most, std::int64_t{0});
  std::string pattern;
  if (!other.indices.empty()) {
    const std::vector<std::int64_t> indices = config.numbers(other.indices, most);
    if (config.has(other.indices)) {
      pattern = std::string(static_cast<std::size_t>(layers),
                            static_cast<char>(nn::LayerKind::recurrent));
    }
    for (const std::int64_t index : indices) {
      if (index >= layers) {
        config.problem(fmt::format("{}: there is no layer {} ({} layers, from 0)", other.indices,
                                   index, layers));
        return absent;
      }
      pattern.replace(static_cast<std::size_t>(index), 1, attention);
    }
  }
  for (const std::string& key : {property.also, property.hub}) {
    if (key.empty() || key == other.indices) {
      continue;
    }
    const std::vector<std::string> words = config.words(key);
    std::string letters;
    for (const std::string& word : words) {
      const auto known =
          std::ranges::find(property.words, word, &std::pair<std::string, std::string>::first);
      if (known == property.words.end()) {
        std::vector<std::string> all;
        for (const auto& [hub, own] : property.words) {
          all.push_back(hub);
        }
        config.problem(fmt::format("{} \"{}\" is not supported (only {})", key, shown(word, 60),
                                   join_words(all)));
        return absent;
      }
      letters += known->second;
    }
    if (!letters.empty() && layers > 0 && std::ssize(letters) != layers) {
      config.problem(fmt::format("{}: expected one type for each of {} layers, got {}", key, layers,
                                 letters.size()));
      return absent;
    }
    pattern = letters.empty() ? pattern : letters;
  }
  if (pattern.empty() && interval > 0) {
    pattern = std::string(static_cast<std::size_t>(interval - 1),
                          static_cast<char>(nn::LayerKind::recurrent)) +
              attention;
  }
  return pattern.empty() ? absent : pattern;
}

/// The keys that say what the layers have.
void write_pattern(const DecoderProperty& property, const std::string& pattern, std::int64_t layers,
                   std::vector<HubKey>& all) {
  std::vector<std::string> words;
  std::vector<std::int64_t> indices;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::string letter(1, pattern[static_cast<std::size_t>(layer) % pattern.size()]);
    const auto word =
        std::ranges::find(property.words, letter, &std::pair<std::string, std::string>::second);
    words.push_back(word == property.words.end() ? letter : word->first);
    if (letter[0] == static_cast<char>(nn::LayerKind::attention)) {
      indices.push_back(layer);
    }
  }
  const std::string& key = property.layers.indices;
  if (property.hub == key) {
    all.push_back(HubKey::raw(key, fmt::format("[{}]", fmt::join(indices, ", "))));
    return;
  }
  all.push_back(HubKey::raw(property.hub, json_list(words)));
  if (!key.empty()) {
    all.push_back(HubKey::raw(key, "null"));
  }
}

/// Where a folder has the experts of a layer: one by one, or as transformers 5 has them in memory.
/// `own`: the layer's name in the model; `stored`: in the folder.
void add_experts(std::vector<HubTensor>& all, const std::string& layer, const std::string& stored,
                 const HubExperts& names) {
  const std::string own = layer + "mlp.experts.";
  all.push_back({.parameter = layer + "mlp.gate.weight", .tensor = stored + names.router});
  all.push_back({.parameter = layer + "mlp.shared_expert_gate.weight",
                 .tensor = stored + names.shared_gate + "weight"});
  if (!names.bias.empty()) {
    all.push_back({.parameter = layer + "mlp.choice_bias",
                   .tensor = stored + names.bias,
                   .row = names.bias_row});
  }
  for (const auto& [matrix, name] :
       {std::pair{"gate_proj", &names.gate}, {"up_proj", &names.up}, {"down_proj", &names.down}}) {
    if (!names.gate.empty()) {
      all.push_back({.parameter = own + matrix, .tensor = stored + *name, .stacked = true});
    }
    for (const char* what : {".weight", ".bias"}) {
      const std::string shared = std::string(matrix) + what;
      all.push_back({.parameter = layer + "mlp.shared_expert." + shared,
                     .tensor = stored + names.shared + shared});
    }
  }
  all.push_back({.parameter = layer + "mlp.gate.bias", .tensor = stored + names.logit_bias});
  for (const auto& [matrix, part] : {std::pair{"gate_proj", 0}, {"up_proj", 1}}) {
    HubTensor half{.parameter = own + matrix,
                   .tensor = stored + names.gate_up,
                   .transposed = names.transposed,
                   .part = part,
                   .parts = 2,
                   .dim = 1,
                   .alternating = names.alternating};
    all.push_back(half);
    half.parameter += "_bias";
    half.tensor = stored + names.gate_up_bias;
    half.transposed = false;
    all.push_back(half);
  }
  all.push_back({.parameter = own + "down_proj",
                 .tensor = stored + names.all_down,
                 .transposed = names.transposed});
  all.push_back({.parameter = own + "down_proj_bias", .tensor = stored + names.down_bias});
}

/// `own`: the layer's name in the model; `stored`: in the folder.
void add_fused(std::vector<HubTensor>& all, const std::string& layer, const std::string& stored,
               const FusedModule& fused, const nn::DecoderShape& shape) {
  const auto heads = static_cast<int>(shape.heads);
  const auto keys = static_cast<int>(shape.kv_heads);
  const bool recurrent = fused.parts[0].starts_with("recurrent.");
  const int groups = !fused.by_key_heads ? (fused.by_heads ? heads : 1)
                     : recurrent         ? static_cast<int>(shape.recurrent.key_heads)
                                         : keys;
  // How many equal parts of a group a module is.
  const auto extent = [&](const std::string& own) {
    return recurrent                   ? static_cast<int>(recurrent_rows(shape, own)) / groups
           : own == "self_attn.q_proj" ? heads / groups
           : own == "self_attn.k_proj" || own == "self_attn.v_proj" ? keys / groups
                                                                    : 1;
  };
  int parts = 0;
  int divisor = 0;
  for (const std::string& own : fused.parts) {
    parts += extent(own);
    divisor = std::gcd(divisor, extent(own));
  }
  divisor = std::max(divisor, 1);
  int part = 0;
  for (const std::string& own : fused.parts) {
    for (const char* what : {".weight", ".bias"}) {
      all.push_back({.parameter = layer + own + what,
                     .tensor = stored + fused.stored + what,
                     .part = part / divisor,
                     .parts = parts / divisor,
                     .parts_taken = extent(own) / divisor,
                     .groups = groups});
    }
    part += extent(own);
  }
}

/// A module's weight and bias under another name; where that has a `*`, a tensor for each entry of
/// the weight's first dim.
void rename(std::vector<HubTensor>& all, const std::string& own, const std::string& stored) {
  if (own == stored) {
    return;
  }
  const bool stacked = stored.find('*') != std::string::npos;
  all.push_back({.parameter = own + ".weight", .tensor = stored + ".weight", .stacked = stacked});
  if (!stacked) {
    all.push_back({.parameter = own + ".bias", .tensor = stored + ".bias"});
  }
}

/// Whether a layer has what this module belongs to.
bool layer_has(const nn::DecoderShape& shape, std::int64_t layer, const std::string& module) {
  const nn::LayerKind kind = shape.layer_kind(layer);
  const std::string part = module.substr(0, module.find('.'));
  return part == "recurrent"   ? kind == nn::LayerKind::recurrent
         : part == "self_attn" ? kind == nn::LayerKind::attention
         : part == "mlp"       ? shape.has_feed_forward(layer)
                               : true;
}

bool is_outside_of_layers(const std::string& module) {
  return module.starts_with("model.") || module == "lm_head";
}

}  // namespace

std::vector<std::string> decoder_size_keys() {
  return {"vocab",    "dim",     "layers",        "heads",    "kv_heads",
          "head_dim", "ffn_dim", "max_positions", "norm_eps", "tie_embeddings"};
}

std::vector<std::string> decoder_modules() {
  return {"model.embed_tokens",
          "model.norm",
          "lm_head",
          "input_layernorm",
          "post_attention_layernorm",
          "pre_feedforward_layernorm",
          "post_feedforward_layernorm",
          "self_attn.q_proj",
          "self_attn.k_proj",
          "self_attn.v_proj",
          "self_attn.o_proj",
          "self_attn.gate_proj",
          "self_attn.q_norm",
          "self_attn.k_norm",
          "self_attn.q_a_proj",
          "self_attn.q_a_layernorm",
          "self_attn.q_b_proj",
          "self_attn.kv_a_proj_with_mqa",
          "self_attn.kv_a_layernorm",
          "self_attn.kv_b_proj",
          "recurrent",
          "recurrent.q_proj",
          "recurrent.k_proj",
          "recurrent.v_proj",
          "recurrent.gate_proj",
          "recurrent.gate_a_proj",
          "recurrent.gate_b_proj",
          "recurrent.decay_proj",
          "recurrent.decay_a_proj",
          "recurrent.decay_b_proj",
          "recurrent.strength_proj",
          "recurrent.q_conv",
          "recurrent.k_conv",
          "recurrent.v_conv",
          "recurrent.conv",
          "recurrent.norm",
          "recurrent.o_proj",
          "mlp.gate_proj",
          "mlp.up_proj",
          "mlp.down_proj",
          "mlp.shared_expert.gate_proj",
          "mlp.shared_expert.up_proj",
          "mlp.shared_expert.down_proj"};
}

std::string DecoderFamily::hub_size(const std::string& key) const {
  if (const auto own = traits_.hub_sizes.find(key); own != traits_.hub_sizes.end()) {
    return own->second;
  }
  static const std::map<std::string, std::string> usual = {
      {"vocab", "vocab_size"},
      {"dim", "hidden_size"},
      {"layers", "num_hidden_layers"},
      {"heads", "num_attention_heads"},
      {"kv_heads", "num_key_value_heads"},
      {"head_dim", "head_dim"},
      {"ffn_dim", "intermediate_size"},
      {"max_positions", "max_position_embeddings"},
      {"norm_eps", "rms_norm_eps"},
      {"tie_embeddings", "tie_word_embeddings"}};
  return usual.at(key);
}

void DecoderFamily::read_sizes(HubConfig& config, ModelSizes& sizes) const {
  const DecoderTraits::HubDefaults& absent = traits_.absent;
  // A size that has no key is what a config has without it.
  const auto size = [&](const std::string& key, std::int64_t limit, std::int64_t otherwise) {
    const std::string hub = hub_size(key);
    return hub.empty()     ? (otherwise < 0 ? std::int64_t{key != "layers"} : otherwise)
           : otherwise < 0 ? config.size(hub, limit)
                           : config.size(hub, limit, otherwise);
  };
  sizes.vocab = size("vocab", widest, -1);
  const std::int64_t dim = size("dim", widest, -1);
  const std::int64_t heads = size("heads", most, -1);
  const double ffn = absent.ffn_per_dim * static_cast<double>(dim);
  sizes.max_positions = size("max_positions", most_positions, absent.max_positions);
  sizes.values.set("dim", dim);
  sizes.values.set("layers", size("layers", most, -1));
  sizes.values.set("heads", heads);
  sizes.values.set("kv_heads",
                   size("kv_heads", most, absent.kv_heads > 0 ? absent.kv_heads : heads));
  sizes.values.set("head_dim", size("head_dim", widest, absent.head_dim));
  sizes.values.set("ffn_dim",
                   size("ffn_dim", widest, ffn > 0 ? static_cast<std::int64_t>(ffn) : -1));
  const std::string eps = hub_size("norm_eps");
  sizes.values.set("norm_eps",
                   eps.empty() ? absent.norm_eps : config.positive(eps, absent.norm_eps));
  sizes.values.set("tie_embeddings",
                   config.flag(hub_size("tie_embeddings"), absent.tie_embeddings));
}

ModelSizes DecoderFamily::read(HubConfig& config) const {
  for (const FixedHubKey& fixed : traits_.fixed_keys) {
    config.only(fixed.key, fixed.json, fixed.reason);
  }
  const bool has_marks = std::ranges::find(traits_.properties, "mlp_layer_types",
                                           &DecoderProperty::hub) != traits_.properties.end();
  if (traits_.experts && !has_marks) {
    config.only("mlp_layer_types", "null", "other keys say which layers have experts");
  } else if (!has_marks) {
    config.only_entries("mlp_layer_types", "\"dense\"", "every feed-forward part is dense");
  }
  config.ignore(traits_.ignored_keys);
  ModelSizes sizes;
  read_sizes(config, sizes);
  read_properties(config, sizes);
  read_rope(config, sizes);
  read_global_layers(config, sizes);
  check_layer_types(config, sizes);
  if (config.sound()) {
    for (const ValueConflict& misfit : misfits_of(shape_of(sizes))) {
      config.problem(misfit.hub);
    }
  }
  const std::int64_t given_head = sizes.values.integer("head_dim");
  sizes.values.set("head_dim", given_head > 0
                                   ? given_head
                                   : sizes.values.integer("dim") / sizes.values.integer("heads"));
  return sizes;
}

void DecoderFamily::read_rope(HubConfig& config, ModelSizes& sizes) const {
  if (!traits_.rope_keys) {
    sizes.values.set("rope_theta", traits_.absent.rope_theta);
    return;
  }
  // Its key where a family's folders do not name it as Llama's do.
  const auto other_key = [&](const char* key, double absent) {
    const auto found = traits_.hub_sizes.find(key);
    return found == traits_.hub_sizes.end() ? absent : config.positive(found->second, absent);
  };
  std::vector<std::string> kinds = {"default"};
  if (traits_.scaled_rope) {
    kinds.clear();
    for (const RopeKind& known : rope_kinds) {
      kinds.emplace_back(known.hub);
    }
  }
  HubRope rope = config.rope(
      kinds, other_key("rope_theta", traits_.absent.rope_theta),
      traits_.shape.local_rope_theta > 0 || traits_.rope_by_layers ? std::string(full) : "",
      {.share = traits_.partial_rope,
       .alpha = traits_.rope_alpha,
       .growth = traits_.rope_growth,
       .ignored = traits_.ignored_rope,
       .absent = traits_.absent.rope});
  sizes.values.set("rope_theta", rope.theta);
  if (traits_.rope_growth) {
    sizes.values.set("query_growth", rope.growth);
    sizes.values.set("query_growth_period", static_cast<std::int64_t>(rope.growth_period));
  }
  if (has_key("latent_rank")) {
    const auto head = static_cast<double>(sizes.values.integer("plain_dim") +
                                          sizes.values.integer("rotated_dim"));
    sizes.values.set("attention_scale",
                     rope.score_scale == 1 ? 0 : rope.score_scale / std::sqrt(head));
  }
  if (traits_.partial_rope) {
    const double share = config.positive("partial_rotary_factor",
                                         other_key("rotary_share", traits_.absent.rotary_share));
    sizes.values.set("rotary_share", rope.share > 0 ? rope.share : share);
  }
  if (traits_.shape.local_rope_theta > 0) {
    const double given = traits_.rope_by_layers ? traits_.shape.local_rope_theta
                                                : sizes.values.number("local_rope_theta");
    sizes.values.set("local_rope_theta", config.rope_theta_of(std::string(sliding), given));
  }
  if (!traits_.scaled_rope) {
    return;
  }
  if (rope.alpha > 0) {  // a larger base, and nothing else
    const std::int64_t given = sizes.values.integer("head_dim");
    const auto dims = static_cast<double>(
        given > 0 ? given : sizes.values.integer("dim") / sizes.values.integer("heads"));
    rope = {.theta = rope.theta * std::pow(rope.alpha, dims / (dims - 2)), .share = rope.share};
    sizes.values.set("rope_theta", rope.theta);
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

void DecoderFamily::read_layers(HubConfig& config, const DecoderProperty& property,
                                ModelSizes& sizes) const {
  std::int64_t layers = sizes.values.integer("layers");
  const std::string pattern = read_pattern(config, property, layers);
  if (layers < 1) {  // as many as the list has
    layers = std::ssize(pattern);
    if (layers > most) {
      config.problem(fmt::format("{}: there are at most {} layers", property.hub, most));
    }
    sizes.values.set("layers", layers);
  }
  sizes.values.set(property.key, shortest_pattern(pattern, std::min(layers, most)));
}

void DecoderFamily::read_properties(HubConfig& config, ModelSizes& sizes) const {
  std::vector<std::string> replaced;
  for (const DecoderProperty& property : traits_.properties) {
    const bool null = config.is_null(property.hub);
    if (property.form == HubForm::layers) {
      read_layers(config, property, sizes);
    } else if (property.form == HubForm::words && std::holds_alternative<bool>(property.absent)) {
      sizes.values.set(property.key, read_word(config, property) == "true");
    } else if (property.entry >= 0) {
      sizes.values.set(property.key, config.one_of_two(property.hub, property.entry,
                                                       std::get<double>(property.absent)));
    } else if (const bool* const flag = std::get_if<bool>(&property.absent)) {
      sizes.values.set(property.key, config.flag(property.hub, !null && *flag));
    } else if (const auto* const size = std::get_if<std::int64_t>(&property.absent)) {
      sizes.values.set(property.key, read_size(config, property, null ? std::int64_t{0} : *size));
    } else if (std::holds_alternative<std::string>(property.absent)) {
      sizes.values.set(property.key, read_word(config, property));
    } else if (property.form == HubForm::zeros) {
      sizes.values.set(property.key, zeros_of(config, property, sizes.values.integer("layers")));
      if (!property.replaces.empty() && !config.numbers(property.hub, 1).empty()) {
        replaced.push_back(property.replaces);
      }
    } else if (property.form == HubForm::others) {
      sizes.values.set(property.key,
                       layers_beside(config, property, sizes.values.integer("layers")));
      if (!property.replaces.empty() && config.has(property.hub)) {
        replaced.push_back(property.replaces);
      }
    } else if (property.form == HubForm::marks) {
      sizes.values.set(property.key,
                       marked_layers(config, property, sizes.values.integer("layers")));
    } else if (std::holds_alternative<std::vector<std::int64_t>>(property.absent)) {
      sizes.values.set(property.key, config.numbers(property.hub, most_positions));
    } else {
      const double absent = null ? 0 : std::get<double>(property.absent);
      sizes.values.set(property.key, config.positive(property.hub, absent));
    }
  }
  for (const std::string& key : replaced) {
    const auto found = std::ranges::find(traits_.properties, key, &DecoderProperty::key);
    const double least = found == traits_.properties.end() ? 0 : found->range.low.value_or(0);
    sizes.values.set(key, static_cast<std::int64_t>(least));
  }
}

void DecoderFamily::read_global_layers(HubConfig& config, ModelSizes& sizes) const {
  if (!has_key("global_layers") || config.has("layer_types")) {
    return;
  }
  const nn::DecoderShape shape = shape_of(sizes);
  const std::int64_t every = traits_.absent.global_every;
  std::vector<std::int64_t> global;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    // Chunks go with rotation.
    if (has_key("chunk") ? !shape.is_rotated(layer) : every > 0 && (layer + 1) % every == 0) {
      global.push_back(layer);
    }
  }
  sizes.values.set("global_layers", global);
}

void DecoderFamily::check_layer_types(HubConfig& config, ModelSizes& sizes) const {
  if (pattern() != nullptr) {
    return;
  }
  if (lists_layers()) {
    sizes.values.set("global_layers", std::vector<std::int64_t>());
  }
  const std::vector<std::string> types = config.texts("layer_types");
  if (types.empty()) {
    return;
  }
  const bool has_period = has_key("global_every");
  if (has_period) {
    const auto first = std::ranges::find(types, full);
    sizes.values.set("global_every",
                     first == types.end() ? std::int64_t{0} : first - types.begin() + 1);
  }
  nn::DecoderShape shape = shape_of(sizes);
  if (std::ssize(types) != shape.layers) {
    config.problem(fmt::format("layer_types: expected one type for each of {} layers, got {}",
                               shape.layers, types.size()));
    return;
  }
  const auto misfit = [&](std::int64_t layer) {
    return types[static_cast<std::size_t>(layer)] != type_of(shape, layer);
  };
  const auto layers = std::views::iota(std::int64_t{0}, shape.layers);
  if (lists_layers() && shape.window > 0 && std::ranges::any_of(layers, misfit)) {
    // Not each so many-th layer: those without a window are listed.
    shape.global_every = 0;
    shape.global_layers.clear();
    for (const std::int64_t layer : layers) {
      if (types[static_cast<std::size_t>(layer)] == full) {
        shape.global_layers.push_back(layer);
      }
    }
    sizes.values.set("global_layers", shape.global_layers);
    if (has_period) {
      sizes.values.set("global_every", std::int64_t{0});
    }
  }
  if (const auto wrong = std::ranges::find_if(layers, misfit); wrong != layers.end()) {
    config.problem(fmt::format("layer_types {} is not supported: layer {} must have \"{}\"",
                               shown(json_list(types), 60), *wrong, type_of(shape, *wrong)));
  }
}

std::vector<HubKey> DecoderFamily::written_sizes(const ModelSizes& sizes) const {
  const ModelValues& values = sizes.values;
  const std::pair<const char*, HubKey> all[] = {
      {"vocab", {"", sizes.vocab}},
      {"dim", {"", values.integer("dim")}},
      {"ffn_dim", {"", values.integer("ffn_dim")}},
      {"layers", {"", values.integer("layers")}},
      {"heads", {"", values.integer("heads")}},
      {"kv_heads", {"", values.integer("kv_heads")}},
      {"head_dim", {"", values.integer("head_dim")}},
      {"norm_eps", {"", values.number("norm_eps")}},
      {"tie_embeddings", {"", values.flag("tie_embeddings")}},
      {"max_positions", {"", sizes.max_positions}}};
  std::vector<HubKey> written;
  for (const auto& [key, value] : all) {
    if (const std::string hub = hub_size(key); !hub.empty()) {
      written.push_back(HubKey::raw(hub, value.json));
    }
  }
  return written;
}

void DecoderFamily::write_rope(const nn::DecoderShape& shape, std::vector<HubKey>& all) const {
  if (!traits_.rope_keys) {
    return;
  }
  std::string share;
  if (traits_.partial_rope) {
    const HubKey part("partial_rotary_factor", shape.rotary_share);
    share = fmt::format(R"("partial_rotary_factor": {}, )", part.json);
    all.push_back(part);
  }
  const bool local = traits_.shape.local_rope_theta > 0;
  const bool scaled_scores =
      shape.latent_rank > 0 && shape.attention_scale > 0 && shape.rope_scaling.factor > 1;
  std::string scaling = scaling_json(shape.rope_scaling, shape.rope_stretch, scaled_scores);
  if (scaled_scores) {
    // Its square follows from mscale_all_dim, by which transformers scales the amplitude too.
    const auto head = static_cast<double>(shape.plain_dim + shape.rotated_dim);
    const double by = std::sqrt(shape.attention_scale * std::sqrt(head));
    scaling += fmt::format(R"(, "mscale_all_dim": {}, "attention_factor": {})",
                           HubKey("", (by - 1) / (0.1 * std::log(shape.rope_scaling.factor))).json,
                           HubKey("", shape.rope_scaling.amplitude).json);
  }
  if (traits_.rope_growth) {
    const nn::QueryGrowth& growth = shape.growth.queries;
    scaling += fmt::format(R"(, "llama_4_scaling_beta": {})", HubKey("", growth.scale).json);
    if (shape.rope_scaling.kind != Kind::llama3 && shape.rope_scaling.kind != Kind::yarn) {
      scaling += fmt::format(R"(, "original_max_position_embeddings": {})", growth.period);
    }
  }
  const std::string rope = rope_json(shape.rope_theta, scaling, share);
  // transformers 4 reads rope_theta and rope_scaling, transformers 5 rope_parameters.
  all.emplace_back("rope_theta", shape.rope_theta);
  all.push_back(
      HubKey::raw("rope_parameters",
                  local ? fmt::format(R"({{"{}": {}, "{}": {}}})", full, rope, sliding,
                                      rope_json(shape.local_rope_theta, scaling_json({}), share))
                        : rope));
  if (traits_.scaled_rope) {
    const bool none = shape.rope_scaling.kind == Kind::none && shape.rope_stretch == 0;
    all.push_back(HubKey::raw("rope_scaling", none ? "null" : fmt::format("{{{}}}", scaling)));
  }
}

std::string DecoderFamily::pair_json(const ModelValues& values,
                                     const DecoderProperty& first) const {
  std::string json;
  for (const DecoderProperty& property : traits_.properties) {
    if (property.hub == first.hub) {
      const double value = values.number(property.key);
      json += json.empty() ? "" : ", ";
      json += value == 0 && property.entry > 0 ? R"({"__float__": "Infinity"})"
                                               : HubKey("", value).json;
    }
  }
  return "[" + json + "]";
}

namespace {

std::string layer_types(const nn::DecoderShape& shape) {
  std::vector<std::string> types;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    types.emplace_back(type_of(shape, layer));
  }
  return json_list(types);
}

/// A property that is a list, as config.json has it.
std::string list_json(const ModelValues& values, const DecoderProperty& property) {
  const std::vector<std::int64_t>& own = values.integers(property.key);
  const std::int64_t layers = values.integer("layers");
  const auto is_own = [&](std::int64_t layer) {
    return std::ranges::find(own, layer) != own.end();
  };
  const std::int64_t every = property.replaces.empty() ? 0 : values.integer(property.replaces);
  std::vector<std::int64_t> numbers;
  std::vector<std::string> marks;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const bool in_period = every > 0 && (layer + 1) % every == 0;
    if (property.form == HubForm::zeros) {
      numbers.push_back(is_own(layer) || in_period ? 0 : 1);
    } else if (property.form == HubForm::others) {
      if ((every == 0 || in_period) && !is_own(layer)) {
        numbers.push_back(layer);
      }
    } else {
      marks.push_back(is_own(layer) ? property.marks.first : property.marks.second);
    }
  }
  const bool plain = property.form == HubForm::plain;
  return property.form == HubForm::marks
             ? json_list(marks)
             : fmt::format("[{}]", fmt::join(plain ? own : numbers, ", "));
}

}  // namespace

void DecoderFamily::write_properties(const ModelSizes& sizes, std::vector<HubKey>& all) const {
  const ModelValues& values = sizes.values;
  for (const DecoderProperty& property : traits_.properties) {
    if (property.form == HubForm::layers) {
      write_pattern(property, values.text(property.key), values.integer("layers"), all);
    } else if (property.form == HubForm::words && std::holds_alternative<bool>(property.initial)) {
      const std::string value = values.flag(property.key) ? "true" : "false";
      const auto word =
          std::ranges::find(property.words, value, &std::pair<std::string, std::string>::second);
      all.push_back(word->first.empty() ? HubKey::raw(property.hub, "null")
                                        : HubKey(property.hub, word->first.c_str()));
    } else if (property.entry == 0) {
      all.push_back(HubKey::raw(property.hub, pair_json(values, property)));
    } else if (property.entry > 0) {
      // with the first
    } else if (std::holds_alternative<bool>(property.initial)) {
      all.emplace_back(property.hub, values.flag(property.key));
    } else if (std::holds_alternative<std::int64_t>(property.initial)) {
      const std::int64_t value = values.integer(property.key);
      if (value == 0 && std::ranges::find(traits_.properties, property.key,
                                          &DecoderProperty::replaces) != traits_.properties.end()) {
        continue;  // transformers computes with it even where there is a list
      }
      if (value == 0 && !property.none.empty()) {
        all.emplace_back(property.hub, property.none.c_str());
        continue;
      }
      all.push_back(value == 0 && property.form != HubForm::counts
                        ? HubKey::raw(property.hub, "null")
                        : HubKey(property.hub, value));
      if (!property.also.empty()) {
        all.emplace_back(property.also, value);
      }
    } else if (std::holds_alternative<std::string>(property.initial)) {
      const std::string& value = values.text(property.key);
      const auto word =
          std::ranges::find(property.words, value, &std::pair<std::string, std::string>::second);
      const bool is_flag = word->first == "true" || word->first == "false";
      all.push_back(is_flag ? HubKey::raw(property.hub, word->first)
                            : HubKey(property.hub, word->first.c_str()));
    } else if (std::holds_alternative<std::vector<std::int64_t>>(property.initial)) {
      const bool types = property.hub == "layer_types";
      all.push_back(HubKey::raw(
          property.hub, types ? layer_types(shape_of(sizes)) : list_json(values, property)));
    } else {
      const double value = values.number(property.key);
      const bool whole = property.whole && value == std::floor(value) && std::abs(value) < 0x1p53;
      all.push_back(value == 0 ? HubKey::raw(property.hub, "null")
                    : whole    ? HubKey(property.hub, static_cast<std::int64_t>(value))
                               : HubKey(property.hub, value));
    }
  }
}

std::vector<HubKey> DecoderFamily::write(const ModelSizes& sizes) const {
  const nn::DecoderShape shape = shape_of(sizes);
  std::vector<HubKey> all = written_sizes(sizes);
  write_rope(shape, all);
  write_properties(sizes, all);
  for (const FixedHubKey& fixed : traits_.fixed_keys) {
    if (fixed.written) {
      all.push_back(HubKey::raw(fixed.key, fixed.json));
    }
  }
  if (lists_layers()) {
    all.push_back(HubKey::raw("layer_types", layer_types(shape)));
  }
  return all;
}

std::string DecoderFamily::stored_module(const std::string& own) const {
  const auto found = traits_.hub_modules.find(own);
  return found == traits_.hub_modules.end() ? own : found->second;
}

std::string DecoderFamily::stored_module(std::int64_t layer, const std::string& own) const {
  std::string prefix = stored_module(std::string(layers_prefix));
  prefix.replace(prefix.find('*'), 1, std::to_string(layer));
  return own.empty() ? prefix + "." : fmt::format("{}.{}", prefix, stored_module(own));
}

std::vector<HubTensor> DecoderFamily::tensors(const ModelSizes& sizes) const {
  std::vector<HubTensor> all;
  const nn::DecoderShape shape = shape_of(sizes);
  std::set<std::string> in_fused;
  for (const FusedModule& fused : traits_.fused) {
    in_fused.insert(fused.parts.begin(), fused.parts.end());
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string own = layer_name(layer);
    const std::string stored = stored_module(layer, "");
    if (shape.has_experts(layer) && traits_.experts) {
      add_experts(all, own, stored, *traits_.experts);
    }
    const auto has = [&](const std::string& module) {
      return !is_outside_of_layers(module) && layer_has(shape, layer, module);
    };
    for (const FusedModule& fused : traits_.fused) {
      if (has(fused.parts[0])) {
        add_fused(all, own, stored, fused, shape);
      }
    }
    for (const std::string& module : decoder_modules()) {
      if (has(module) && !in_fused.contains(module)) {
        rename(all, own + module, stored_module(layer, module));
      }
    }
    if (has("recurrent")) {
      for (const char* parameter : {"A_log", "dt_bias", "D"}) {
        all.push_back({.parameter = own + "recurrent.steps." + parameter,
                       .tensor = stored_module(layer, "recurrent") + "." + parameter});
      }
    }
  }
  for (const std::string& module : decoder_modules()) {
    if (is_outside_of_layers(module)) {
      rename(all, module, stored_module(module));
    }
  }
  return all;
}

std::vector<std::string> DecoderFamily::ignored_tensors() const { return traits_.ignored_tensors; }

std::vector<std::string> DecoderFamily::packed_forms() const {
  return traits_.experts && traits_.experts->packed ? std::vector<std::string>{"mxfp4"}
                                                    : std::vector<std::string>{};
}

ModelFamily::Layers DecoderFamily::layers(const ModelSizes& sizes) const {
  const std::string key = hub_size("layers");
  return {"model.layers.", key.empty() && pattern() != nullptr ? pattern()->hub : key,
          sizes.values.integer("layers")};
}

void DecoderFamily::add_recurrent_sizes(const nn::DecoderShape& shape, std::int64_t layer,
                                        std::vector<SizedTensor>& all) const {
  const nn::RecurrentOptions options = shape.recurrence();
  const bool plain = options.rule == nn::RecurrentRule::convolution;
  const std::string own = layer_name(layer) + "recurrent.";
  for (const char* name : {"k_proj", "v_proj"}) {
    all.push_back({own + name + ".weight",
                   {plain ? hub_size("dim") : "the features of recurrent heads", hub_size("dim")},
                   {recurrent_rows(shape, std::string("recurrent.") + name), shape.dim}});
  }
  const std::int64_t values = recurrent_rows(shape, "recurrent.v_proj");
  all.push_back(
      {own + (plain ? "conv.weight" : "v_conv.weight"),
       {"the features of recurrent heads", "1", hub_key("recurrent_kernel", "the kernel")},
       {values, 1, options.kernel}});
  if (!plain) {
    all.push_back({own + "steps.dt_bias",
                   {"the decays of recurrent heads"},
                   {options.value_heads * (options.gate_rank > 0 ? options.key_dim : 1)}});
  }
  if (options.gate_rank > 0) {
    all.push_back({own + "gate_b_proj.weight",
                   {"the features of recurrent heads", "those of their gates"},
                   {values, options.gate_rank}});
  }
}

std::vector<SizedTensor> DecoderFamily::sized_tensors(const ModelSizes& sizes) const {
  const nn::DecoderShape shape = shape_of(sizes);
  const std::string dim = hub_size("dim");
  const std::string heads = hub_size("heads");
  const std::int64_t attends = first_of_kind(shape, nn::LayerKind::attention);
  const std::string attention = layer_name(attends) + "self_attn.";
  std::vector<SizedTensor> all = {
      {"model.embed_tokens.weight", {hub_size("vocab"), dim}, {shape.vocab, shape.dim}}};
  if (const std::int64_t layer = first_of_kind(shape, nn::LayerKind::recurrent); layer >= 0) {
    add_recurrent_sizes(shape, layer, all);
  }
  if (attends < 0) {
    // no layer has such sizes
  } else if (shape.latent_rank > 0) {
    all.push_back({attention + "kv_b_proj.weight",
                   {heads + " times the features of a head", hub_key("latent_rank", "")},
                   {shape.heads * (shape.plain_dim + shape.value_extent()), shape.latent_rank}});
  } else {
    all.push_back({attention + "q_proj.weight",
                   {heads + " times head_dim", dim},
                   {shape.heads * shape.head_dim, shape.dim}});
    const std::string keys = hub_size("kv_heads");
    all.push_back({attention + "k_proj.weight",
                   {(keys.empty() ? heads : keys) + " times head_dim", dim},
                   {shape.kv_heads * shape.head_dim, shape.dim}});
  }
  if (const std::int64_t dense = first_layer(shape, false); dense >= 0) {
    all.push_back(
        {layer_name(dense) + (shape.gated ? "mlp.gate_proj.weight" : "mlp.up_proj.weight"),
         {hub_size("ffn_dim"), dim},
         {shape.ffn_extent(), shape.dim}});
  }
  if (const std::int64_t sparse = first_layer(shape, true); sparse >= 0) {
    const std::string count = hub_key("experts", "num_local_experts");
    const std::string width = hub_key("expert_dim", "intermediate_size");
    all.push_back(
        {layer_name(sparse) + "mlp.gate.weight", {count, dim}, {shape.experts, shape.dim}});
    all.push_back({layer_name(sparse) + "mlp.experts.gate_proj",
                   {count, width, dim},
                   {shape.experts, shape.expert_extent(), shape.dim}});
    if (shape.shared_expert_dim > 0) {
      all.push_back({layer_name(sparse) + "mlp.shared_expert.gate_proj.weight",
                     {hub_key("shared_expert_dim", ""), dim},
                     {shape.shared_expert_dim, shape.dim}});
    }
  }
  return all;
}

const DecoderProperty* DecoderFamily::pattern() const {
  const auto found = std::ranges::find(traits_.properties, HubForm::layers, &DecoderProperty::form);
  return found == traits_.properties.end() ? nullptr : &*found;
}

bool DecoderFamily::has_key(std::string_view key) const {
  return std::ranges::find(traits_.properties, key, &DecoderProperty::key) !=
         traits_.properties.end();
}

std::string DecoderFamily::hub_key(std::string_view key, const std::string& otherwise) const {
  const auto found = std::ranges::find(traits_.properties, key, &DecoderProperty::key);
  return found == traits_.properties.end() ? otherwise : found->hub;
}

}  // namespace tessera::models
