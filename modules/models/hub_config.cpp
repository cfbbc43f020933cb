module;
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
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

namespace tessera::models {

using Json = nlohmann::json;

/// Declared in hub_keys.cpp.
std::span<const std::string_view> irrelevant_hub_keys();

namespace {

// An export does not pass these on: it writes them itself, or has its weights under the usual
// names.
constexpr std::string_view not_passed_on[] = {
    "model_type",  "architectures",        "dtype",
    "torch_dtype", "transformers_version", "transformers_weights"};

bool present(const Json& object, const std::string& key) {
  return object.contains(key) && !object[key].is_null();
}

/// A value as an error shows it.
std::string json_shown(const Json& value) { return shown(json_text(value), 60); }

/// "a", "b" and so on, each in quotes.
std::string quoted_words(std::vector<std::string> words) {
  for (std::string& word : words) {
    word = fmt::format("\"{}\"", word);
  }
  return join_words(words);
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

bool HubRope::operator==(const HubRope& other) const {
  return theta == other.theta && kind == other.kind && factor == other.factor &&
         original_positions == other.original_positions && low == other.low && high == other.high &&
         amplitude == other.amplitude && whole_dims == other.whole_dims && share == other.share &&
         alpha == other.alpha && score_scale == other.score_scale && growth == other.growth &&
         growth_period == other.growth_period && short_factors == other.short_factors &&
         long_factors == other.long_factors;
}

struct HubConfig::State {
  Json json;
  std::string name;
  std::vector<std::string> problems;
  std::set<std::string> read;     // they change the model, and a family writes them
  std::set<std::string> checked;  // they must have one value
  std::set<std::string> ignored;

  void refuse(const std::string& key, const Json& value, const std::string& only,
              const std::string& reason) {
    problems.push_back(
        fmt::format("{} {} is not supported (only {}): {}", key, json_shown(value), only, reason));
  }

  /// The key has this value, which the file has at `where`.
  void give(const std::string& key, const std::string& where, const Json& value) {
    if (present(json, key) && json[key] != value) {
      problems.push_back(fmt::format("{} is {}, but {} is {}; remove one of the two", where,
                                     json_shown(value), key, json_shown(json[key])));
    }
    json[key] = value;
  }

  /// The keys with these names have the parts of an object, which the file has at `where`.
  void give_parts(const std::string& where, const Json& object,
                  const std::map<std::string, std::string>& names) {
    if (!object.is_object()) {
      problems.push_back(fmt::format("{}: expected an object, got {}", where, json_shown(object)));
      return;
    }
    for (const auto& [part, value] : object.items()) {
      const std::string whole = where + "." + part;
      const auto found = names.find(part);
      if (found == names.end()) {
        problems.push_back(
            shown(whole) +
            ": not understood, so the model may be another one than this program would compute");
      } else {
        give(found->second, whole, value);
      }
    }
  }

  double positive(const Json& object, const std::string& key, double otherwise) {
    if (!present(object, key)) {
      return otherwise;
    }
    const Json& value = object[key];
    if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<double>())) {
      problems.push_back(
          fmt::format("{}: expected a positive number, got {}", key, json_shown(value)));
      return otherwise;
    }
    return value.get<double>();
  }

  /// The kind of rotary embedding that `rope` describes; what else is set there would be ignored in
  /// silence. Empty: there is a problem.
  std::string kind_of_rope(const std::string& key, const Json& rope,
                           std::span<const std::string> kinds, const RopeParts& parts) {
    const std::vector<std::string> supported(kinds.begin(), kinds.end());
    std::string kind = "default";
    for (const char* type : {"rope_type", "type"}) {
      if (!present(rope, type)) {
        continue;
      }
      const auto found =
          std::ranges::find_if(kinds, [&](const std::string& one) { return rope[type] == one; });
      if (found == kinds.end()) {
        problems.push_back(fmt::format("{}.{} {} is not supported (only {})", key, type,
                                       json_shown(rope[type]), quoted_words(supported)));
        return "";
      }
      kind = *found;
    }
    if (present(rope, "factor") && !present(rope, "rope_type") && !present(rope, "type")) {
      problems.push_back(fmt::format("{}: has a factor but no type; only {} is supported", key,
                                     quoted_words(supported)));
      return "";
    }
    const bool share_counts =
        std::ranges::find(parts.ignored, "partial_rotary_factor") == parts.ignored.end();
    if (!parts.share && share_counts && present(rope, "partial_rotary_factor") &&
        rope["partial_rotary_factor"] != 1.0) {
      problems.push_back(fmt::format("{}.partial_rotary_factor {} is not supported (only 1)", key,
                                     json_shown(rope["partial_rotary_factor"])));
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
    for (const auto& [part, value] : rope.items()) {
      if (!value.is_null() && std::ranges::find(known, part) == known.end()) {
        problems.push_back(
            fmt::format("{}.{}: the {} rotary embedding has no such setting{}; remove it", key,
                        shown(part), kind, did_you_mean(part, known)));
      }
    }
    return kind;
  }

  /// The numbers of a rotary embedding of this kind.
  void read_scaling(const std::string& key, const Json& rope, HubRope& to) {
    if (to.kind == "proportional") {
      if (positive(rope, "factor", 1) != 1) {
        problems.push_back(
            fmt::format("{}.factor {} is not supported (only 1)", key, json_shown(rope["factor"])));
      }
      return;
    }
    if (to.kind == "longrope") {
      read_long(key, rope, to);
      return;
    }
    const auto number = [&](const char* part, double otherwise) {
      if (otherwise <= 0 && !present(rope, part)) {
        problems.push_back(fmt::format("{}.{} is missing", key, part));
      }
      return positive(rope, part, otherwise);
    };
    to.factor = number("factor", 0);
    if (to.kind == "llama3") {
      to.low = number("low_freq_factor", 0);
      to.high = number("high_freq_factor", 0);
    } else if (to.kind == "yarn") {
      to.low = number("beta_slow", 1);
      to.high = number("beta_fast", 32);
      to.amplitude = number("attention_factor", yarn_amplitude(rope, to.factor));
      to.whole_dims = !present(rope, "truncate") || rope["truncate"] != false;
      to.score_scale = score_scale(rope, to.factor);
    }
    if (to.kind == "dynamic") {
      to.original_positions = positive(json, "max_position_embeddings", 2048);
    } else if (to.kind != "linear") {
      to.original_positions =
          number("original_max_position_embeddings", positive(json, "max_position_embeddings", 0));
      if (to.original_positions != std::floor(to.original_positions) ||
          to.original_positions > 1LL << 40) {
        problems.push_back(
            fmt::format("{}.original_max_position_embeddings: expected an integer, got {}", key,
                        to.original_positions));
      }
    }
  }

  /// Factors of wavelengths.
  void read_long(const std::string& key, const Json& rope, HubRope& to) {
    constexpr const char* original = "original_max_position_embeddings";
    // Older folders have it beside the object. Where neither says it, no row is long.
    const double last = positive(json, "max_position_embeddings", 1);
    const double beside = positive(json, original, 0);
    to.original_positions = positive(rope, original, beside > 0 ? beside : last);
    if (beside > 0 && beside != to.original_positions) {
      problems.push_back(fmt::format("{} {} and {}.{} {} are not one number", original, beside, key,
                                     original, to.original_positions));
    }
    to.factor = positive(rope, "factor", last / to.original_positions);
    const double usual = to.factor > 1 && to.original_positions > 1
                             ? std::sqrt(1 + std::log(to.factor) / std::log(to.original_positions))
                             : 1;
    to.amplitude = positive(rope, "attention_factor", usual);
    to.short_factors = factors_of(key, rope, "short_factor");
    to.long_factors = factors_of(key, rope, "long_factor");
  }

  /// A list of positive numbers.
  std::vector<double> factors_of(const std::string& key, const Json& rope, const char* part) {
    constexpr std::size_t longest = 100000;
    const auto fits = [](const Json& one) {
      return one.is_number() && one.get<double>() > 0 && std::isfinite(one.get<double>());
    };
    const Json list = rope.value(part, Json());
    if (!list.is_array() || list.empty() || list.size() > longest ||
        !std::ranges::all_of(list, fits)) {
      problems.push_back(fmt::format("{}.{}: expected a list of positive numbers, got {}", key,
                                     part, json_shown(list)));
      return {};
    }
    return list.get<std::vector<double>>();
  }

  /// By what queries grow, and after how many positions.
  void read_growth(const std::string& key, const Json& rope, HubRope& to) {
    for (const char* part : {"llama_4_scaling_beta", "original_max_position_embeddings"}) {
      if (!present(rope, part)) {
        problems.push_back(fmt::format("{}.{} is missing", key, part));
        return;
      }
    }
    const bool none = rope["llama_4_scaling_beta"] == 0;
    to.growth = none ? 0 : positive(rope, "llama_4_scaling_beta", 0);
    to.growth_period = positive(rope, "original_max_position_embeddings", 1);
  }

  /// What scores of attention over latent features are multiplied by.
  double score_scale(const Json& rope, double factor) {
    if (!present(rope, "mscale_all_dim") || rope["mscale_all_dim"] == 0 || factor <= 1) {
      return 1;
    }
    const double by = 0.1 * positive(rope, "mscale_all_dim", 0) * std::log(factor) + 1;
    return by * by;
  }

  /// The factor of cosines and sines where attention_factor does not say it.
  double yarn_amplitude(const Json& rope, double factor) {
    const auto scale = [&](const char* part) {
      const bool none = !present(rope, part) || rope[part] == 0;  // as transformers reads it
      return none ? 0 : positive(rope, part, 0);
    };
    const auto amplitude = [&](double by) {
      return factor > 1 ? 0.1 * by * std::log(factor) + 1 : 1;
    };
    const double own = scale("mscale");
    const double all = scale("mscale_all_dim");
    return own > 0 && all > 0 ? amplitude(own) / amplitude(all) : amplitude(1);
  }

  void check_names() {
    std::vector<std::string> changing(read.begin(), read.end());
    changing.insert(changing.end(), checked.begin(), checked.end());
    std::vector<std::string> unknown;
    for (const auto& [key, value] : json.items()) {
      if (read.contains(key) || checked.contains(key) || ignored.contains(key)) {
        continue;
      }
      if (const std::string nearest = nearest_name(key, changing); !nearest.empty()) {
        problems.push_back(fmt::format(
            "{}: unknown key; did you mean '{}'? Correct it, or remove it", shown(key), nearest));
      } else {
        unknown.push_back(shown(key));
      }
    }
    if (!unknown.empty()) {
      problems.push_back(fmt::format(
          "{}: not understood, so the model may be another one than this program would compute; "
          "remove {} if it is the same model without {}",
          join_words(unknown), unknown.size() == 1 ? "the key" : "the keys",
          unknown.size() == 1 ? "it" : "them"));
    }
  }

  void throw_if_any() const {
    if (problems.size() == 1) {
      fail_input({.thing = name, .wrong = problems[0]});
    }
    if (!problems.empty()) {
      std::string text = fmt::format("{}: {} problems", name, problems.size());
      for (const std::string& problem : problems) {
        text += "\n  " + problem;
      }
      fail_input(text);
    }
  }
};

HubConfig::HubConfig(std::shared_ptr<State> state) : state_(std::move(state)) {}

HubConfigFile::HubConfigFile(std::string_view json, std::string name)
    : HubConfig(std::make_shared<State>()) {
  ParsedJson parsed =
      parse_json_object(json, {.bytes = 16'000'000, .values = 1'000'000, .depth = 64});
  if (!parsed.problem.empty()) {
    fail_input({.thing = name, .wrong = parsed.problem});
  }
  state_->json = std::move(parsed.value);
  state_->name = std::move(name);
  for (const std::string_view key : irrelevant_hub_keys()) {
    state_->ignored.emplace(key);
  }
  state_->read.emplace("model_type");
}

void HubConfig::problem(std::string text) { state_->problems.push_back(std::move(text)); }
bool HubConfig::sound() const { return state_->problems.empty(); }

std::int64_t HubConfig::size(const std::string& key, std::int64_t limit) {
  if (!present(state_->json, key)) {
    problem(fmt::format("{} is missing", key));
  }
  return size(key, limit, 1);
}

std::int64_t HubConfig::size(const std::string& key, std::int64_t limit, std::int64_t otherwise) {
  state_->read.insert(key);
  if (!present(state_->json, key)) {
    return otherwise;
  }
  const Json& value = state_->json[key];
  if (!value.is_number_integer() || !(value > 0) || value > limit) {
    problem(fmt::format("{}: expected a positive integer of at most {}, got {}", key, limit,
                        json_shown(value)));
    return otherwise;
  }
  return value.get<std::int64_t>();
}

std::int64_t HubConfig::integer(const std::string& key, double low, std::int64_t high,
                                std::int64_t otherwise) {
  state_->read.insert(key);
  if (!present(state_->json, key)) {
    return otherwise;
  }
  const Json& value = state_->json[key];
  if (!value.is_number_integer() || value < low || value > high) {
    problem(fmt::format("{}: expected an integer from {} to {}, got {}", key, low, high,
                        json_shown(value)));
    return otherwise;
  }
  return value.get<std::int64_t>();
}

double HubConfig::positive(const std::string& key, double otherwise) {
  state_->read.insert(key);
  return state_->positive(state_->json, key, otherwise);
}

double HubConfig::rate(const std::string& key, double otherwise) {
  state_->read.insert(key);
  if (!present(state_->json, key)) {
    return otherwise;
  }
  const Json& value = state_->json[key];
  if (!value.is_number() || !(value.get<double>() >= 0) || !(value.get<double>() < 1)) {
    problem(fmt::format("{}: expected a number from 0 to below 1, got {}", key, json_shown(value)));
    return otherwise;
  }
  return value.get<double>();
}

bool HubConfig::flag(const std::string& key, bool otherwise) {
  state_->read.insert(key);
  if (!present(state_->json, key)) {
    return otherwise;
  }
  if (!state_->json[key].is_boolean()) {
    problem(fmt::format("{}: expected true or false, got {}", key, json_shown(state_->json[key])));
    return otherwise;
  }
  return state_->json[key].get<bool>();
}

std::string HubConfig::text(const std::string& key, const std::string& otherwise) {
  state_->read.insert(key);
  if (!present(state_->json, key)) {
    return otherwise;
  }
  if (state_->json[key].is_boolean()) {
    return state_->json[key].get<bool>() ? "true" : "false";
  }
  if (!state_->json[key].is_string()) {
    problem(fmt::format("{}: expected a text, got {}", key, json_shown(state_->json[key])));
    return otherwise;
  }
  return state_->json[key].get<std::string>();
}

bool HubConfig::is_text(const std::string& key, const std::string& text) {
  const bool same = present(state_->json, key) && state_->json[key] == text;
  if (same) {
    state_->read.insert(key);
  }
  return same;
}

bool HubConfig::is_one_of(const std::string& key, std::span<const std::string> values,
                          const std::string& otherwise) {
  state_->read.insert(key);
  const Json value = present(state_->json, key) ? state_->json[key] : parse_json(otherwise);
  return std::ranges::any_of(values,
                             [&](const std::string& json) { return parse_json(json) == value; });
}

std::vector<std::string> HubConfig::words(const std::string& key) {
  if (!present(state_->json, key) || !state_->json[key].is_string()) {
    return texts(key);
  }
  state_->read.insert(key);
  std::vector<std::string> letters;
  for (const char letter : state_->json[key].get<std::string>()) {
    letters.emplace_back(1, letter);
  }
  return letters;
}

double HubConfig::one_of_two(const std::string& key, std::int64_t which, double otherwise) {
  state_->read.insert(key);
  if (!present(state_->json, key)) {
    return otherwise;
  }
  const Json& list = state_->json[key];
  const auto is_infinite = [](const Json& one) { return one == Json{{"__float__", "Infinity"}}; };
  const auto fits = [&](const Json& one) {
    return is_infinite(one) || (one.is_number() && one >= 0);
  };
  if (!list.is_array() || list.size() != 2 || !std::ranges::all_of(list, fits)) {
    problem(fmt::format("{}: expected two numbers from 0 on, got {}", key, json_shown(list)));
    return otherwise;
  }
  const Json& one = list[static_cast<std::size_t>(which)];
  return is_infinite(one) ? 0 : one.get<double>();
}

bool HubConfig::has(const std::string& key) const { return present(state_->json, key); }

bool HubConfig::is_null(const std::string& key) const {
  return state_->json.contains(key) && state_->json[key].is_null();
}

std::vector<std::string> HubConfig::texts(const std::string& key) {
  state_->read.insert(key);
  std::vector<std::string> all;
  if (!present(state_->json, key)) {
    return all;
  }
  const Json& list = state_->json[key];
  if (!list.is_array() ||
      std::ranges::any_of(list, [](const Json& one) { return !one.is_string(); })) {
    problem(fmt::format("{}: expected a list of texts, got {}", key, json_shown(list)));
    return all;
  }
  for (const Json& one : list) {
    all.push_back(one.get<std::string>());
  }
  return all;
}

std::vector<std::int64_t> HubConfig::numbers(const std::string& key, std::int64_t limit) {
  state_->read.insert(key);
  std::vector<std::int64_t> all;
  if (!present(state_->json, key)) {
    return all;
  }
  const Json& list = state_->json[key];
  const auto wrong = [&](const Json& one) {
    return !one.is_number_integer() || one < 0 || one > limit;
  };
  if (!list.is_array() || std::ranges::any_of(list, wrong)) {
    problem(fmt::format("{}: expected a list of integers from 0 to {}, got {}", key, limit,
                        json_shown(list)));
    return all;
  }
  for (const Json& one : list) {
    all.push_back(one.get<std::int64_t>());
  }
  return all;
}

std::vector<double> HubConfig::rates(const std::string& key) {
  state_->read.insert(key);
  if (!present(state_->json, key)) {
    return {};
  }
  const Json& list = state_->json[key];
  const auto fits = [](const Json& one) { return one.is_number() && one >= 0 && one < 1; };
  if (!list.is_array() || !std::ranges::all_of(list, fits)) {
    problem(fmt::format("{}: expected a list of numbers from 0 to below 1, got {}", key,
                        json_shown(list)));
    return {};
  }
  return list.get<std::vector<double>>();
}

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
  state_->kind_of_rope("rope_parameters", object, kinds, {});
  return state_->positive(object, "rope_theta", otherwise);
}

HubRope HubConfig::rope(std::span<const std::string> kinds, double theta, const std::string& layers,
                        RopeParts parts) {
  HubRope rope;
  std::optional<double> given;
  const auto take = [&](const Json& object) {
    if (!present(object, "rope_theta")) {
      return;
    }
    const double value = state_->positive(object, "rope_theta", 1);
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
    const std::string kind = state_->kind_of_rope(key, object, kinds, parts);
    if (!kind.empty() && kind != "default") {
      rope.kind = kind;
      state_->read_scaling(key, object, rope);
    }
    if (parts.share) {
      rope.share = state_->positive(object, "partial_rotary_factor", 0);
    }
    if (parts.growth) {
      state_->read_growth(key, object, rope);
    }
    if (parts.alpha && rope.kind == "dynamic") {
      rope.alpha = state_->positive(object, "alpha", 0);
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

void HubConfig::only(const std::string& key, const std::string& json, const std::string& reason) {
  state_->checked.insert(key);
  if (present(state_->json, key) && state_->json[key] != parse_json(json)) {
    state_->refuse(key, state_->json[key], json, reason);
  }
}

void HubConfig::only_entries(const std::string& key, const std::string& json,
                             const std::string& reason) {
  state_->checked.insert(key);
  const Json entry = parse_json(json);
  if (present(state_->json, key) &&
      (!state_->json[key].is_array() ||
       std::ranges::any_of(state_->json[key], [&](const Json& one) { return one != entry; }))) {
    state_->refuse(key, state_->json[key], json, reason);
  }
}

void HubConfig::rename(const std::string& older, const std::string& key) {
  state_->read.insert(older);
  if (present(state_->json, older)) {
    state_->give(key, older, Json(state_->json[older]));
  }
}

void HubConfig::unfold(const std::string& key, const std::map<std::string, std::string>& names) {
  state_->read.insert(key);
  if (!present(state_->json, key)) {
    return;
  }
  const Json object = state_->json[key];
  state_->give_parts(key, object, names);
}

std::vector<std::int64_t> HubConfig::unfold_layers(
    const std::string& key, const std::map<std::string, std::string>& names) {
  state_->read.insert(key);
  std::vector<std::int64_t> layers;
  if (!present(state_->json, key)) {
    return layers;
  }
  const Json object = state_->json[key];
  const auto is_number = [](const std::string& text) {
    return !text.empty() && text.size() < 8 &&
           text.find_first_not_of("0123456789") == std::string::npos;
  };
  for (const auto& [layer, parts] : object.items()) {
    if (!object.is_object() || !is_number(layer) || parts != object.front()) {
      problem(fmt::format("{}: expected numbers of layers with the same parts, got {}", key,
                          json_shown(object)));
      return layers;
    }
    layers.push_back(std::stoll(layer));
  }
  if (layers.empty()) {
    problem(fmt::format("{}: expected an object with parts for layers, got {}", key,
                        json_shown(object)));
    return layers;
  }
  const std::string first = object.begin().key();
  state_->give_parts(key + "." + first, object.front(), names);
  std::ranges::sort(layers);
  return layers;
}

void HubConfig::one_for_layers(const std::string& key, const std::string& layers) {
  if (!present(state_->json, key) || !state_->json[key].is_array()) {
    return;
  }
  const Json list = state_->json[key];
  const bool alike = !list.empty() && std::ranges::all_of(list, [&](const Json& one) {
    return one == list.front();
  });
  if (!alike || !present(state_->json, layers) || state_->json[layers] != list.size()) {
    problem(fmt::format("{}: expected the same number for each of {}, got {}", key, layers,
                        json_shown(list)));
  }
  state_->json[key] = list.empty() ? Json() : list.front();
}

void HubConfig::ignore(std::span<const std::string> keys) {
  state_->ignored.insert(keys.begin(), keys.end());
}

void HubConfigFile::check_common(const std::string& architecture,
                                 std::span<const std::string> packed) {
  const Json& json = state_->json;
  only("is_causal", "true", "a token attends to earlier tokens only");
  only("is_encoder_decoder", "false", "the model is a decoder");
  only("add_cross_attention", "false", "the model is a decoder");
  check_folder(packed);
  only("loss_type", "\"ForCausalLM\"", "the loss is the cross entropy of the next token");
  if (present(json, "architectures")) {
    // The class in a folder that names several classes, or none, or another one. Early writers
    // differ in upper and lower case.
    const Json& classes = json["architectures"];
    const bool known = classes.is_array() && classes.size() == 1 && classes.front().is_string() &&
                       lower(classes.front().get<std::string>()) == lower(architecture);
    if (!known && !(classes.is_array() && classes.empty())) {
      state_->refuse("architectures", classes, fmt::format("[\"{}\"]", architecture),
                     "another model, or another head on it");
    }
  }
}

void HubConfigFile::check_folder(std::span<const std::string> packed) {
  const Json& json = state_->json;
  only("pruned_heads", "{}", "all heads are computed");
  if (present(json, "per_layer_config") && json["per_layer_config"].empty()) {
    state_->checked.insert("per_layer_config");  // otherwise a family reads it, or nobody does
  }
  // The form of packed weights is in the tensors; an export has none.
  const bool is_packed = present(json, "quantization_config") &&
                         json["quantization_config"].is_object() &&
                         std::ranges::any_of(packed, [&](const std::string& form) {
                           return json["quantization_config"].value("quant_method", Json()) == form;
                         });
  if (is_packed) {
    state_->read.insert("quantization_config");
  } else {
    only("quantization_config", "null", "weights are floating numbers");
  }
  only("compression_config", "null", "weights are floating numbers");
  only("configuration_files", "null", "transformers reads another file in the place of this one");
  only("transformers_weights", "\"model.safetensors\"", "transformers reads the weights there");
  if (!present(json, "auto_map") || !json["auto_map"].is_object()) {
    return;
  }
  for (const auto& [name, code] : json["auto_map"].items()) {
    if (name.starts_with("AutoModel")) {
      state_->refuse("auto_map", json["auto_map"], "null",
                     "the folder brings its own code for the model");
      return;
    }
  }
}

std::string HubConfigFile::architecture() {
  state_->read.insert("architectures");
  if (!present(state_->json, "architectures") || state_->json["architectures"].empty()) {
    return "";
  }
  const Json& classes = state_->json["architectures"];
  if (!classes.is_array() || classes.size() != 1 || !classes.front().is_string()) {
    problem(
        fmt::format("architectures: expected a list of one class, got {}", json_shown(classes)));
    return "";
  }
  return classes.front().get<std::string>();
}

std::vector<std::string> HubConfigFile::labels() {
  constexpr std::int64_t most = 100000;
  state_->read.insert("label2id");  // follows from id2label
  std::int64_t count = size("num_labels", most, 2);
  state_->read.insert("id2label");
  const Json& json = state_->json;
  std::vector<std::string> names;
  if (!present(json, "id2label")) {
    for (std::int64_t i = 0; i < count; ++i) {
      names.push_back(fmt::format("LABEL_{}", i));
    }
    return names;
  }
  const Json& given = json["id2label"];
  count = given.is_object() ? static_cast<std::int64_t>(given.size()) : 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto found = given.find(fmt::format("{}", i));
    if (found == given.end() || !found->is_string()) {
      count = 0;
      break;
    }
    names.push_back(found->get<std::string>());
  }
  if (count == 0 || count > most) {
    problem(fmt::format("id2label: expected a name for each number from 0 on, got {}",
                        json_shown(given)));
    return {"LABEL_0", "LABEL_1"};
  }
  if (present(json, "num_labels") && json["num_labels"] != count) {
    problem(fmt::format("num_labels is {}, but id2label has {}; remove num_labels",
                        json_shown(json["num_labels"]), count));
  }
  return names;
}

void HubConfigFile::throw_if_any() const { state_->throw_if_any(); }
const std::vector<std::string>& HubConfigFile::problems() const { return state_->problems; }

HubKeyUse HubConfigFile::use() const {
  HubKeyUse use;
  for (const std::string& key : state_->read) {
    (present(state_->json, key) ? use.read : use.absent).push_back(key);
  }
  for (const auto& [key, value] : state_->json.items()) {
    if (state_->read.contains(key)) {
      continue;
    }
    (state_->checked.contains(key)   ? use.fixed
     : state_->ignored.contains(key) ? use.ignored
                                     : use.unknown)
        .push_back(key);
  }
  return use;
}

void HubConfigFile::finish() {
  state_->check_names();
  state_->throw_if_any();
}

std::vector<std::int64_t> HubConfigFile::tokens(const std::string& key, std::int64_t vocab,
                                                std::int64_t otherwise) {
  std::vector<std::int64_t> ids;
  const auto found = state_->json.find(key);
  if (found == state_->json.end()) {
    return otherwise >= 0 && otherwise < vocab ? std::vector{otherwise} : ids;
  }
  const Json list = found->is_array()  ? *found
                    : found->is_null() ? Json::array()
                                       : Json::array({*found});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= vocab) {
      problem(fmt::format("{}: expected null, a token id from 0 to {} or a list of them, got {}",
                          key, vocab - 1, json_shown(*found)));
      return {};
    }
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

std::string HubConfigFile::dtype() {
  std::string type;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!present(state_->json, key)) {
      continue;
    }
    const Json& value = state_->json[key];
    if (value != "float32" && value != "bfloat16" && value != "float16" && value != "float64") {
      problem(fmt::format("{} {} is not supported (only float32, bfloat16, float16 or float64)",
                          key, json_shown(value)));
    } else if (!type.empty() && value != type) {
      problem(fmt::format("dtype is \"{}\", but torch_dtype is {}; remove one of the two", type,
                          json_shown(value)));
    } else {
      type = value.get<std::string>();
    }
  }
  return type;
}

std::string HubConfigFile::others() const {
  Json json = state_->json;
  for (const std::string& key : state_->read) {
    json.erase(key);
  }
  for (const std::string_view key : not_passed_on) {
    json.erase(std::string(key));
  }
  return json_text(json);
}

HubKey::HubKey(std::string name, bool value)
    : key(std::move(name)), json(value ? "true" : "false") {}
HubKey::HubKey(std::string name, std::int64_t value)
    : key(std::move(name)), json(fmt::format("{}", value)) {}
HubKey::HubKey(std::string name, double value)
    : key(std::move(name)), json(json_text(Json(value))) {}
HubKey::HubKey(std::string name, const char* text)
    : key(std::move(name)), json(json_text(Json(text))) {}

HubKey HubKey::list(std::string name, std::span<const std::string> texts) {
  Json list = Json::array();
  for (const std::string& text : texts) {
    list.push_back(text);
  }
  return raw(std::move(name), json_text(list));
}

HubKey HubKey::raw(std::string name, std::string json) {
  HubKey result(std::move(name), false);
  result.json = std::move(json);
  return result;
}

}  // namespace tessera::models
