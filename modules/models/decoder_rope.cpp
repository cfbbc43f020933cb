// The rotary embedding of decoders in config.json, and in [model].
module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.ops;
import tessera.nn;
import :decoder_family;
import :decoder_values;

namespace tessera::models {

const RopeKind& rope_kind(std::string_view key) {
  const auto* const found = std::ranges::find(
      rope_kinds, key, [](const RopeKind& one) { return std::string_view(one.key); });
  if (found == std::end(rope_kinds)) {
    fail({.thing = "rotary embedding", .wrong = fmt::format("there is no scaling '{}'", key)});
  }
  return *found;
}

namespace {

using Kind = ops::RotaryScaling::Kind;

/// The word for a share of the pairs of a whole head.
constexpr std::string_view by_pairs = "proportional";

/// The amplitude that transformers assumes, as HubConfig::rope reads it.
double yarn_amplitude(double factor) { return factor > 1 ? 0.1 * std::log(factor) + 1 : 1; }

/// That of longrope. Source: transformers' modeling_rope_utils.
double long_amplitude(double factor, double positions) {
  return factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(positions)) : 1;
}

std::string setting(const char* key, double value) {
  return fmt::format(R"(, "{}": {})", key, HubKey(key, value).json);
}

std::string list_json(const std::vector<double>& numbers) {
  std::vector<std::string> texts;
  for (const double number : numbers) {
    texts.push_back(HubKey("", number).json);
  }
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

/// rope_scaling of config.json without its brackets. `amplitude_follows`: the caller writes it.
std::string scaling_json(const ops::RotaryScaling& scaling, bool amplitude_follows = false) {
  std::string json;
  for (const RopeKind& known : rope_kinds) {
    if (known.kind == scaling.kind && json.empty()) {
      json = fmt::format(R"("rope_type": "{}")", known.hub);
    }
  }
  if (scaling.kind != Kind::none) {
    json += setting("factor", scaling.factor);
  }
  if (scaling.kind == Kind::llama3) {
    json += setting("low_freq_factor", scaling.low) + setting("high_freq_factor", scaling.high);
  } else if (scaling.kind == Kind::yarn) {
    // What transformers assumes is left out, as it does.
    json += scaling.low == 1 ? "" : setting("beta_slow", scaling.low);
    json += scaling.high == 32 ? "" : setting("beta_fast", scaling.high);
    json += scaling.amplitude == yarn_amplitude(scaling.factor) || amplitude_follows
                ? ""
                : setting("attention_factor", scaling.amplitude);
    json += scaling.whole_dims ? "" : R"(, "truncate": false)";
  }
  if (scaling.kind == Kind::llama3 || scaling.kind == Kind::yarn) {
    json += fmt::format(R"(, "original_max_position_embeddings": {})",
                        static_cast<std::int64_t>(scaling.original_positions));
  }
  return json;
}

/// The same of the base that grows with the row, and of factors of wavelengths.
std::string scaling_json(const ModelSizes& sizes, const nn::DecoderShape& shape,
                         bool amplitude_follows) {
  if (shape.rope_stretch > 0) {
    return R"("rope_type": "dynamic")" + setting("factor", shape.rope_stretch);
  }
  const nn::WavelengthFactors& factors = shape.rope_factors;
  if (!factors.exist()) {
    return scaling_json(shape.rope_scaling, amplitude_follows);
  }
  const auto limit = static_cast<double>(factors.limit);
  const double factor = sizes.values.number("rope_factor");
  std::string json =
      fmt::format(R"("rope_type": "longrope", "short_factor": {}, "long_factor": {}, )"
                  R"("original_max_position_embeddings": {})",
                  list_json(factors.short_rows), list_json(factors.long_rows), factors.limit);
  // What transformers assumes is left out, as it does.
  json +=
      factor == static_cast<double>(sizes.max_positions) / limit ? "" : setting("factor", factor);
  json += factors.amplitude == long_amplitude(factor, limit)
              ? ""
              : setting("attention_factor", factors.amplitude);
  return json;
}

/// rope_parameters of config.json.
std::string rope_json(double theta, const std::string& scaling, const std::string& share) {
  return fmt::format(R"({{{}"rope_theta": {}, {}}})", share, HubKey("rope_theta", theta).json,
                     scaling);
}

/// The numbers of a scaling.
void set_scaling(const HubRope& rope, ModelSizes& sizes) {
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
  sizes.values.set("rope_short_factors", rope.short_factors);
  sizes.values.set("rope_long_factors", rope.long_factors);
}

}  // namespace

void read_rope(const DecoderTraits& traits, HubConfig& config, ModelSizes& sizes) {
  if (!traits.rope_keys) {
    sizes.values.set("rope_theta", traits.absent.rope_theta);
    if (property_of(traits, &nn::DecoderShape::latent_rank) != nullptr) {
      sizes.values.set("attention_scale", 0.0);
    }
    return;
  }
  // Its key where a family's folders do not name it as Llama's do.
  const auto other_key = [&](const char* key, double absent) {
    const auto found = traits.hub_sizes.find(key);
    return found == traits.hub_sizes.end() ? absent : config.positive(found->second, absent);
  };
  std::vector<std::string> kinds = {"default"};
  if (traits.scaled_rope) {
    kinds.clear();
    for (const RopeKind& known : rope_kinds) {
      kinds.emplace_back(known.hub);
    }
  }
  if (traits.rope_by_pairs) {
    kinds.emplace_back(by_pairs);
  }
  HubRope rope = config.rope(
      kinds, other_key("rope_theta", traits.absent.rope_theta),
      traits.shape.local_rope_theta > 0 || traits.rope_by_layers ? std::string(full_layers) : "",
      {.share = traits.partial_rope || traits.rope_by_pairs,
       .alpha = traits.rope_alpha,
       .growth = traits.rope_growth,
       .ignored = traits.ignored_rope,
       .absent = traits.absent.rope});
  sizes.values.set("rope_theta", rope.theta);
  if (traits.rope_by_pairs) {
    const bool shares = rope.kind == by_pairs;
    sizes.values.set("global_rotary_share", !shares ? 0 : rope.share > 0 ? rope.share : 1.0);
  }
  if (traits.rope_growth) {
    sizes.values.set("query_growth", rope.growth);
    sizes.values.set("query_growth_period", static_cast<std::int64_t>(rope.growth_period));
  }
  if (property_of(traits, &nn::DecoderShape::latent_rank) != nullptr) {
    const auto head = static_cast<double>(sizes.values.integer("plain_dim") +
                                          sizes.values.integer("rotated_dim"));
    sizes.values.set("attention_scale",
                     rope.score_scale == 1 ? 0 : rope.score_scale / std::sqrt(head));
  }
  if (traits.partial_rope) {
    const double share = config.positive("partial_rotary_factor",
                                         other_key("rotary_share", traits.absent.rotary_share));
    sizes.values.set("rotary_share", rope.share > 0 ? rope.share : share);
  }
  if (traits.shape.local_rope_theta > 0) {
    const double given = traits.rope_by_layers ? traits.shape.local_rope_theta
                                               : sizes.values.number("local_rope_theta");
    sizes.values.set("local_rope_theta", config.rope_theta_of(std::string(window_layers), given));
  }
  if (!traits.scaled_rope) {
    return;
  }
  if (rope.alpha > 0) {  // a larger base, and nothing else
    const std::int64_t given = sizes.values.integer("head_dim");
    const auto dims = static_cast<double>(
        given > 0 ? given : sizes.values.integer("dim") / sizes.values.integer("heads"));
    rope = {.theta = rope.theta * std::pow(rope.alpha, dims / (dims - 2)), .share = rope.share};
    sizes.values.set("rope_theta", rope.theta);
  }
  set_scaling(rope, sizes);
}

void write_rope(const DecoderTraits& traits, const ModelSizes& sizes, const nn::DecoderShape& shape,
                std::vector<HubKey>& all) {
  if (!traits.rope_keys) {
    return;
  }
  std::string share;
  if (traits.partial_rope) {
    const HubKey part("partial_rotary_factor", shape.rotary_share);
    share = fmt::format(R"("partial_rotary_factor": {}, )", part.json);
    all.push_back(part);
  }
  const bool local = traits.shape.local_rope_theta > 0;
  const bool scaled_scores =
      shape.latent_rank > 0 && shape.attention_scale > 0 && shape.rope_scaling.factor > 1;
  std::string scaling = scaling_json(sizes, shape, scaled_scores);
  if (scaled_scores) {
    // Its square follows from mscale_all_dim, by which transformers scales the amplitude too.
    const auto head = static_cast<double>(shape.plain_dim + shape.rotated_dim);
    const double by = std::sqrt(shape.attention_scale * std::sqrt(head));
    scaling += fmt::format(R"(, "mscale_all_dim": {}, "attention_factor": {})",
                           HubKey("", (by - 1) / (0.1 * std::log(shape.rope_scaling.factor))).json,
                           HubKey("", shape.rope_scaling.amplitude).json);
  }
  if (traits.rope_growth) {
    const nn::QueryGrowth& growth = shape.growth.queries;
    scaling += fmt::format(R"(, "llama_4_scaling_beta": {})", HubKey("", growth.scale).json);
    if (shape.rope_scaling.kind != Kind::llama3 && shape.rope_scaling.kind != Kind::yarn) {
      scaling += fmt::format(R"(, "original_max_position_embeddings": {})", growth.period);
    }
  }
  const std::string local_rope =
      rope_json(shape.local_rope_theta, scaling_json(ops::RotaryScaling()), share);
  if (shape.global_heads.rotary_share > 0) {
    scaling = fmt::format(R"("rope_type": "{}")", by_pairs);
    share = fmt::format(R"("partial_rotary_factor": {}, )",
                        HubKey("", shape.global_heads.rotary_share).json);
  }
  const std::string rope = rope_json(shape.rope_theta, scaling, share);
  // transformers 4 reads rope_theta and rope_scaling, transformers 5 rope_parameters.
  all.emplace_back("rope_theta", shape.rope_theta);
  all.push_back(HubKey::raw(
      "rope_parameters",
      local ? fmt::format(R"({{"{}": {}, "{}": {}}})", full_layers, rope, window_layers, local_rope)
            : rope));
  if (traits.scaled_rope) {
    const bool none = shape.rope_scaling.kind == Kind::none && shape.rope_stretch == 0 &&
                      !shape.rope_factors.exist();
    all.push_back(HubKey::raw("rope_scaling", none ? "null" : fmt::format("{{{}}}", scaling)));
  }
}

}  // namespace tessera::models
