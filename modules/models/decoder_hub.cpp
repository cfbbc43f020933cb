// Decoders in Hugging Face's format: config.json.
module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <ranges>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.nn;
import :decoder_family;
import :decoder_values;
import :hub_forms;

namespace tessera::models {
namespace {

/// Our own key: layers of further tokens that a checkpoint or an export has.
constexpr const char* further_key = "further_layers";

/// The keys by which transformers 5 says which layers have experts.
constexpr const char* part_types = "mlp_layer_types";

const HubForm& form_of(const DecoderProperty& property) {
  return property.form ? *property.form : *usual_form(property.initial);
}

}  // namespace

std::string_view layer_type(const nn::DecoderShape& shape, std::int64_t layer) {
  return shape.has_window(layer)   ? window_layers
         : shape.has_chunks(layer) ? chunk_layers
                                   : full_layers;
}

std::vector<std::string> layer_types(const nn::DecoderShape& shape) {
  std::vector<std::string> types;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    types.emplace_back(layer_type(shape, layer));
  }
  return types;
}

std::vector<std::string> decoder_size_keys() {
  return {"vocab",    "dim",     "layers",        "heads",    "kv_heads",
          "head_dim", "ffn_dim", "max_positions", "norm_eps", "tie_embeddings"};
}

std::string hub_size(const DecoderTraits& traits, const std::string& key) {
  if (const auto own = traits.hub_sizes.find(key); own != traits.hub_sizes.end()) {
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
    const std::string hub = hub_size(traits_, key);
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
  const std::string eps = hub_size(traits_, "norm_eps");
  sizes.values.set("norm_eps",
                   eps.empty() ? absent.norm_eps : config.positive(eps, absent.norm_eps));
  sizes.values.set("tie_embeddings",
                   config.flag(hub_size(traits_, "tie_embeddings"), absent.tie_embeddings));
}

void DecoderFamily::read_variant(HubConfig& config, ModelSizes& sizes) const {
  const DecoderVariants& variants = traits_.variants;
  if (variants.all.empty()) {
    return;
  }
  const auto fits = [&](const DecoderVariant& variant) {
    // Each flag is asked for, so that none is unknown.
    return std::ranges::count_if(variant.flags, [&](const auto& flag) {
             return !config.is_one_of(flag.first, flag.second, variants.absent.at(flag.first));
           }) == 0;
  };
  const auto found = std::ranges::find_if(variants.all, fits);
  if (found == variants.all.end()) {
    std::vector<std::string> flags;
    for (const auto& [key, absent] : variants.absent) {
      flags.push_back(key);
    }
    config.problem(
        fmt::format("{}: this family has no models with these values together", join_words(flags)));
    return;
  }
  for (const auto& [key, absent] : variants.absent) {
    config.is_one_of(key, {}, absent);
  }
  sizes.values.set("form", found->name);
  if (found->key_heads != KeyHeads::counted) {
    sizes.values.set("kv_heads", found->key_heads == KeyHeads::one ? std::int64_t{1}
                                                                   : sizes.values.integer("heads"));
  }
}

ModelSizes DecoderFamily::read(HubConfig& config) const {
  for (const FixedHubKey& fixed : traits_.fixed_keys) {
    config.only(fixed.key, fixed.json, fixed.reason);
  }
  for (const auto& [older, key] : traits_.older_keys) {
    config.rename(older, key);
  }
  for (const auto& [object, names] : traits_.nested) {
    config.unfold(object, names);
  }
  for (const auto& [object, names] : traits_.nested_global) {
    config.unfold_layers(object, names);
  }
  for (const std::string& key : traits_.each_layer) {
    config.one_for_layers(key, hub_size(traits_, "layers"));
  }
  const bool has_marks = std::ranges::find(traits_.properties, part_types, &DecoderProperty::hub) !=
                         traits_.properties.end();
  if (traits_.experts && !has_marks) {
    config.only(part_types, "null", "other keys say which layers have experts");
  } else if (!has_marks) {
    config.only_entries(part_types, "\"dense\"", "every feed-forward part is dense");
  }
  config.ignore(traits_.ignored_keys);
  config.ignore(traits_.further.keys);
  ModelSizes sizes;
  read_sizes(config, sizes);
  read_variant(config, sizes);
  read_properties(config, sizes);
  read_rope(traits_, config, sizes);
  read_global_layers(config, sizes);
  check_layer_types(config, sizes);
  check_global_objects(config, sizes);
  if (has_further_layers(traits_)) {
    // A folder's own count says nothing about its tensors: transformers writes it without them.
    sizes.values.set("further_layers", config.integer(further_key, 0, most_further_layers, 0));
  }
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

void DecoderFamily::read_properties(HubConfig& config, ModelSizes& sizes) const {
  HubInput in{.config = config, .sizes = sizes};
  for (const DecoderProperty& property : traits_.properties) {
    form_of(property).read(property, in);
  }
  for (const std::string& key : in.replaced) {
    const auto found = std::ranges::find(traits_.properties, key, &DecoderProperty::key);
    if (found != traits_.properties.end()) {
      sizes.values.set(key, static_cast<std::int64_t>(found->range.low.value_or(0)));
    }
  }
}

bool has_last_global(const DecoderProperty& layers) {
  const auto* const form = dynamic_cast<const LayerTypesForm*>(layers.form.get());
  return form != nullptr && form->has_last();
}

void DecoderFamily::read_global_layers(HubConfig& config, ModelSizes& sizes) const {
  const DecoderProperty* const listed = property_of(traits_, &nn::DecoderShape::global_layers);
  if (listed == nullptr || config.has(listed->hub)) {
    return;
  }
  const bool by_chunks = property_of(traits_, &nn::DecoderShape::chunk) != nullptr;
  const nn::DecoderShape shape = shape_of(sizes);
  const std::int64_t every = traits_.absent.global_every;
  std::vector<std::int64_t> global;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    // Chunks go with rotation.
    const bool is_global =
        by_chunks ? !shape.is_rotated(layer) : every > 0 && (layer + 1) % every == 0;
    if (is_global || (layer + 1 == shape.layers && has_last_global(*listed))) {
      global.push_back(layer);
    }
  }
  sizes.values.set(listed->key, global);
}

void DecoderFamily::check_layer_types(HubConfig& config, ModelSizes& sizes) const {
  if (pattern_of(traits_) != nullptr) {
    return;
  }
  if (lists_layers(traits_)) {
    sizes.values.set("global_layers", std::vector<std::int64_t>());
  }
  std::vector<std::string> types = config.texts("layer_types");
  if (types.empty()) {
    return;
  }
  const DecoderProperty* const listed = property_of(traits_, &nn::DecoderShape::global_layers);
  if (listed != nullptr && has_last_global(*listed)) {
    types.back() = full_layers;
  }
  const DecoderProperty* const period = property_of(traits_, &nn::DecoderShape::global_every);
  if (period != nullptr) {
    const auto first = std::ranges::find(types, full_layers);
    sizes.values.set(period->key,
                     first == types.end() ? std::int64_t{0} : first - types.begin() + 1);
  }
  nn::DecoderShape shape = shape_of(sizes);
  if (std::ssize(types) != shape.layers) {
    config.problem(fmt::format("layer_types: expected one type for each of {} layers, got {}",
                               shape.layers, types.size()));
    return;
  }
  const auto misfit = [&](std::int64_t layer) {
    return types[static_cast<std::size_t>(layer)] != layer_type(shape, layer);
  };
  const auto layers = std::views::iota(std::int64_t{0}, shape.layers);
  if (lists_layers(traits_) && shape.window > 0 && std::ranges::any_of(layers, misfit)) {
    // Not each so many-th layer: those without a window are listed.
    shape.global_every = 0;
    shape.global_layers.clear();
    for (const std::int64_t layer : layers) {
      if (types[static_cast<std::size_t>(layer)] == full_layers) {
        shape.global_layers.push_back(layer);
      }
    }
    sizes.values.set("global_layers", shape.global_layers);
    if (period != nullptr) {
      sizes.values.set(period->key, std::int64_t{0});
    }
  }
  if (const auto wrong = std::ranges::find_if(layers, misfit); wrong != layers.end()) {
    config.problem(fmt::format("layer_types {} is not supported: layer {} must have \"{}\"",
                               shown(HubKey::list("", types).json, 60), *wrong,
                               layer_type(shape, *wrong)));
  }
}

void DecoderFamily::check_global_objects(HubConfig& config, const ModelSizes& sizes) const {
  if (!config.sound() || traits_.nested_global.empty()) {
    return;
  }
  const nn::DecoderShape shape = shape_of(sizes);
  std::vector<std::int64_t> global;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    if (!shape.has_window(layer)) {
      global.push_back(layer);
    }
  }
  for (const auto& [object, names] : traits_.nested_global) {
    if (config.has(object) && config.unfold_layers(object, names) != global) {
      config.problem(fmt::format("{}: expected parts for the layers without a window, {}", object,
                                 fmt::join(global, ", ")));
    }
  }
}

void DecoderFamily::write_sizes(const ModelSizes& sizes, std::vector<HubKey>& all) const {
  const ModelValues& values = sizes.values;
  const std::pair<const char*, HubKey> own[] = {
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
  for (const auto& [key, value] : own) {
    if (const std::string hub = hub_size(traits_, key); !hub.empty()) {
      all.push_back(HubKey::raw(hub, value.json));
    }
  }
  const DecoderVariant* const variant = variant_of(traits_, sizes);
  for (const auto& [key, absent] : traits_.variants.absent) {
    const auto flag = variant->flags.find(key);
    all.push_back(HubKey::raw(key, flag == variant->flags.end() ? absent : flag->second.back()));
  }
}

void DecoderFamily::write_properties(const ModelSizes& sizes, const nn::DecoderShape& shape,
                                     std::vector<HubKey>& all) const {
  const HubOutput out{
      .sizes = sizes, .shape = shape, .properties = traits_.properties, .keys = all};
  for (const DecoderProperty& property : traits_.properties) {
    form_of(property).write(property, out);
  }
}

std::vector<HubKey> DecoderFamily::write(const ModelSizes& sizes) const {
  const nn::DecoderShape shape = shape_of(sizes);
  std::vector<HubKey> all;
  write_sizes(sizes, all);
  write_rope(traits_, sizes, shape, all);
  write_properties(sizes, shape, all);
  for (const FixedHubKey& fixed : traits_.fixed_keys) {
    if (fixed.written) {
      all.push_back(HubKey::raw(fixed.key, fixed.json));
    }
  }
  if (lists_layers(traits_)) {
    all.push_back(HubKey::list("layer_types", layer_types(shape)));
  }
  for (HubKey& key : all) {
    if (std::ranges::find(traits_.each_layer, key.key) != traits_.each_layer.end()) {
      const std::vector<std::string> list(static_cast<std::size_t>(shape.layers), key.json);
      key.json = fmt::format("[{}]", fmt::join(list, ", "));
    }
  }
  if (shape.further_layers > 0) {
    all.emplace_back(traits_.further.keys.front(), shape.further_layers);
    all.emplace_back(further_key, shape.further_layers);
  }
  return all;
}

const DecoderProperty* pattern_of(const DecoderTraits& traits) {
  return property_of(traits, &nn::DecoderShape::layer_pattern);
}

bool has_further_layers(const DecoderTraits& traits) {
  return traits.further.after_layers && !traits.further.copies.empty() &&
         pattern_of(traits) == nullptr;
}

bool lists_layers(const DecoderTraits& traits) {
  return traits.layer_types && property_of(traits, &nn::DecoderShape::global_layers) == nullptr;
}

const DecoderVariant* variant_of(const DecoderTraits& traits, const ModelSizes& sizes) {
  const std::vector<DecoderVariant>& all = traits.variants.all;
  if (all.empty()) {
    return nullptr;
  }
  const auto found = std::ranges::find(all, sizes.values.text("form"), &DecoderVariant::name);
  return found == all.end() ? &all.front() : &*found;
}

std::string hub_key(const DecoderTraits& traits, std::string_view key,
                    const std::string& otherwise) {
  const auto found = std::ranges::find(traits.properties, key, &DecoderProperty::key);
  return found == traits.properties.end() ? otherwise : found->hub;
}

}  // namespace tessera::models
