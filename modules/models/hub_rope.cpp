module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.models;

import tessera.base;
import :hub_config_state;

namespace tessera::models {

using Json = nlohmann::json;

bool HubRope::operator==(const HubRope& other) const {
  return theta == other.theta && kind == other.kind && factor == other.factor &&
         original_positions == other.original_positions && low == other.low && high == other.high &&
         amplitude == other.amplitude && whole_dims == other.whole_dims && share == other.share &&
         alpha == other.alpha && score_scale == other.score_scale && growth == other.growth &&
         growth_period == other.growth_period && short_factors == other.short_factors &&
         long_factors == other.long_factors;
}

namespace {

/// "a", "b" and so on, each in quotes.
std::string quoted_words(std::vector<std::string> words) {
  for (std::string& word : words) {
    word = fmt::format("\"{}\"", word);
  }
  return join_words(words);
}

/// What an object of config.json says about a rotary embedding.
class RopeReader {
 public:
  /// `key`: where config.json has the object.
  RopeReader(std::string key, const Json& rope, const Json& config,
             std::vector<std::string>& problems)
      : key_(std::move(key)), rope_(rope), config_(config), problems_(problems) {}

  /// A positive number of the object; `otherwise` where it is absent or wrong.
  double positive(const char* part, double otherwise) {
    return positive_number(rope_, part, otherwise, problems_);
  }

  /// The kind of rotary embedding that the object describes; what else is set there would be
  /// ignored in silence. Empty: there is a problem.
  std::string read_kind(std::span<const std::string> kinds, const RopeParts& parts) {
    const std::vector<std::string> supported(kinds.begin(), kinds.end());
    std::string kind = "default";
    for (const char* type : {"rope_type", "type"}) {
      if (!present(rope_, type)) {
        continue;
      }
      const auto found =
          std::ranges::find_if(kinds, [&](const std::string& one) { return rope_[type] == one; });
      if (found == kinds.end()) {
        problems_.push_back(fmt::format("{}.{} {} is not supported (only {})", key_, type,
                                        json_shown(rope_[type]), quoted_words(supported)));
        return "";
      }
      kind = *found;
    }
    if (present(rope_, "factor") && !present(rope_, "rope_type") && !present(rope_, "type")) {
      problems_.push_back(fmt::format("{}: has a factor but no type; only {} is supported", key_,
                                      quoted_words(supported)));
      return "";
    }
    const bool share_counts =
        std::ranges::find(parts.ignored, "partial_rotary_factor") == parts.ignored.end();
    if (!parts.share && share_counts && present(rope_, "partial_rotary_factor") &&
        rope_["partial_rotary_factor"] != 1.0) {
      problems_.push_back(fmt::format("{}.partial_rotary_factor {} is not supported (only 1)", key_,
                                      json_shown(rope_["partial_rotary_factor"])));
    }
    std::vector<std::string> known = {"rope_theta", "rope_type", "type", "partial_rotary_factor"};
    const auto also = [&](std::initializer_list<const char*> more) {
      known.insert(known.end(), more.begin(), more.end());
    };
    if (kind != "default") {
      also({"factor"});
    }
    if (kind == "dynamic") {
      also({"max_position_embeddings", "original_max_position_embeddings"});
    }
    if (parts.alpha) {
      // Hunyuan's folders have those of yarn beside a dynamic one, without effect.
      also({"alpha", "beta_slow", "beta_fast", "mscale", "mscale_all_dim"});
    }
    if (parts.growth) {
      also({"llama_4_scaling_beta", "original_max_position_embeddings",
            "max_position_embeddings"});  // the last one has no effect
    }
    if (kind == "longrope") {
      also({"short_factor", "long_factor", "original_max_position_embeddings", "attention_factor"});
    }
    if (kind == "llama3") {
      also({"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
    } else if (kind == "yarn") {
      also({"beta_slow", "beta_fast", "original_max_position_embeddings", "attention_factor",
            "mscale", "mscale_all_dim", "truncate"});
    }
    known.insert(known.end(), parts.ignored.begin(), parts.ignored.end());
    for (const auto& [part, value] : rope_.items()) {
      if (!value.is_null() && std::ranges::find(known, part) == known.end()) {
        problems_.push_back(
            fmt::format("{}.{}: the {} rotary embedding has no such setting{}; remove it", key_,
                        shown(part), kind, did_you_mean(part, known)));
      }
    }
    return kind;
  }

  /// The numbers of a rotary embedding of this kind.
  void read_scaling(HubRope& to) {
    if (to.kind == "proportional") {
      if (positive("factor", 1) != 1) {
        problems_.push_back(fmt::format("{}.factor {} is not supported (only 1)", key_,
                                        json_shown(rope_["factor"])));
      }
      return;
    }
    if (to.kind == "longrope") {
      read_long(to);
      return;
    }
    const auto number = [&](const char* part, double otherwise) {
      if (otherwise <= 0 && !present(rope_, part)) {
        problems_.push_back(fmt::format("{}.{} is missing", key_, part));
      }
      return positive(part, otherwise);
    };
    to.factor = number("factor", 0);
    if (to.kind == "llama3") {
      to.low = number("low_freq_factor", 0);
      to.high = number("high_freq_factor", 0);
    } else if (to.kind == "yarn") {
      to.low = number("beta_slow", 1);
      to.high = number("beta_fast", 32);
      to.amplitude = number("attention_factor", yarn_amplitude(to.factor));
      to.whole_dims = !present(rope_, "truncate") || rope_["truncate"] != false;
      to.score_scale = score_scale(to.factor);
    }
    if (to.kind == "dynamic") {
      to.original_positions = of_config("max_position_embeddings", 2048);
    } else if (to.kind != "linear") {
      to.original_positions =
          number("original_max_position_embeddings", of_config("max_position_embeddings", 0));
      if (to.original_positions != std::floor(to.original_positions) ||
          to.original_positions > 1LL << 40) {
        problems_.push_back(
            fmt::format("{}.original_max_position_embeddings: expected an integer, got {}", key_,
                        to.original_positions));
      }
    }
  }

  /// By what queries grow, and after how many positions.
  void read_growth(HubRope& to) {
    for (const char* part : {"llama_4_scaling_beta", "original_max_position_embeddings"}) {
      if (!present(rope_, part)) {
        problems_.push_back(fmt::format("{}.{} is missing", key_, part));
        return;
      }
    }
    const bool none = rope_["llama_4_scaling_beta"] == 0;
    to.growth = none ? 0 : positive("llama_4_scaling_beta", 0);
    to.growth_period = positive("original_max_position_embeddings", 1);
  }

 private:
  /// Factors of wavelengths.
  void read_long(HubRope& to) {
    constexpr const char* original = "original_max_position_embeddings";
    // Older folders have it beside the object. Where neither says it, no row is long.
    const double last = of_config("max_position_embeddings", 1);
    const double beside = of_config(original, 0);
    to.original_positions = positive(original, beside > 0 ? beside : last);
    if (beside > 0 && beside != to.original_positions) {
      problems_.push_back(fmt::format("{} {} and {}.{} {} are not one number", original, beside,
                                      key_, original, to.original_positions));
    }
    to.factor = positive("factor", last / to.original_positions);
    const double usual = to.factor > 1 && to.original_positions > 1
                             ? std::sqrt(1 + std::log(to.factor) / std::log(to.original_positions))
                             : 1;
    to.amplitude = positive("attention_factor", usual);
    to.short_factors = factors_of("short_factor");
    to.long_factors = factors_of("long_factor");
  }

  /// A list of positive numbers.
  std::vector<double> factors_of(const char* part) {
    constexpr std::size_t longest = 100000;
    const auto fits = [](const Json& one) {
      return one.is_number() && one.get<double>() > 0 && std::isfinite(one.get<double>());
    };
    const Json list = rope_.value(part, Json());
    if (!list.is_array() || list.empty() || list.size() > longest ||
        !std::ranges::all_of(list, fits)) {
      problems_.push_back(fmt::format("{}.{}: expected a list of positive numbers, got {}", key_,
                                      part, json_shown(list)));
      return {};
    }
    return list.get<std::vector<double>>();
  }

  /// What scores of attention over latent features are multiplied by.
  double score_scale(double factor) {
    if (!present(rope_, "mscale_all_dim") || rope_["mscale_all_dim"] == 0 || factor <= 1) {
      return 1;
    }
    const double by = 0.1 * positive("mscale_all_dim", 0) * std::log(factor) + 1;
    return by * by;
  }

  /// The factor of cosines and sines where attention_factor does not say it.
  double yarn_amplitude(double factor) {
    const auto scale = [&](const char* part) {
      const bool none = !present(rope_, part) || rope_[part] == 0;  // as transformers reads it
      return none ? 0 : positive(part, 0);
    };
    const auto amplitude = [&](double by) {
      return factor > 1 ? 0.1 * by * std::log(factor) + 1 : 1;
    };
    const double own = scale("mscale");
    const double all = scale("mscale_all_dim");
    return own > 0 && all > 0 ? amplitude(own) / amplitude(all) : amplitude(1);
  }

  /// Likewise, of config.json itself.
  double of_config(const char* part, double otherwise) {
    return positive_number(config_, part, otherwise, problems_);
  }

  std::string key_;
  const Json& rope_;
  const Json& config_;
  std::vector<std::string>& problems_;
};

}  // namespace

double HubConfig::rope_theta_of(const std::string& layers, double otherwise) {
  const Json& config = state_->json;
  if (!present(config, "rope_parameters") || !config["rope_parameters"].is_object() ||
      !present(config["rope_parameters"], layers)) {
    return otherwise;
  }
  const Json& object = config["rope_parameters"][layers];
  if (!object.is_object()) {
    problem(
        fmt::format("rope_parameters.{}: expected an object, got {}", layers, json_shown(object)));
    return otherwise;
  }
  const std::vector<std::string> kinds = {"default"};
  RopeReader reader("rope_parameters", object, config, state_->problems);
  reader.read_kind(kinds, {});
  return reader.positive("rope_theta", otherwise);
}

HubRope HubConfig::rope(std::span<const std::string> kinds, double theta, const std::string& layers,
                        RopeParts parts) {  // NOLINT(performance-unnecessary-value-param)
  HubRope rope;
  std::optional<double> given;
  const auto take = [&](const Json& object) {
    if (!present(object, "rope_theta")) {
      return;
    }
    const double value = positive_number(object, "rope_theta", 1, state_->problems);
    if (given && *given != value) {
      problem(fmt::format("rope_theta is given twice, as {} and as {}; remove one of the two",
                          *given, value));
    }
    given = value;
  };
  state_->read.insert("rope_theta");
  const Json& config = state_->json;
  const bool by_layers = !layers.empty() && present(config, "rope_parameters") &&
                         config["rope_parameters"].is_object() &&
                         present(config["rope_parameters"], layers);
  if (!by_layers) {
    take(config);
  }
  const bool assumed = !parts.absent.empty() && !present(config, "rope_scaling") &&
                       !present(config, "rope_parameters");
  const Json absent = assumed ? parse_json(parts.absent) : Json();
  std::optional<HubRope> scaling;  // of rope_scaling, which transformers 4 reads
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    state_->read.insert(key);
    const bool is_parameters = std::string_view(key) == "rope_parameters";
    if (!present(config, key) && !(assumed && is_parameters)) {
      continue;
    }
    const bool nested = by_layers && is_parameters;
    const Json& object = assumed ? absent : nested ? config[key][layers] : config[key];
    if (!object.is_object()) {
      problem(fmt::format("{}: expected an object, got {}", key, json_shown(object)));
      continue;
    }
    take(object);
    rope = {};
    RopeReader reader(key, object, config, state_->problems);
    const std::string kind = reader.read_kind(kinds, parts);
    if (!kind.empty() && kind != "default") {
      rope.kind = kind;
      reader.read_scaling(rope);
    }
    if (parts.share) {
      rope.share = reader.positive("partial_rotary_factor", 0);
    }
    if (parts.growth) {
      reader.read_growth(rope);
    }
    if (parts.alpha && rope.kind == "dynamic") {
      rope.alpha = reader.positive("alpha", 0);
    }
    if (scaling) {  // which part is rotated need not be in both
      scaling->share = scaling->share > 0 ? scaling->share : rope.share;
      rope.share = scaling->share;
    }
    if (sound() && scaling && !(*scaling == rope)) {
      problem("rope_scaling and rope_parameters differ; remove one of the two");
    }
    scaling = rope;
  }
  rope.theta = given.value_or(theta);
  return rope;
}

}  // namespace tessera::models
