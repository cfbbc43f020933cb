module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <tuple>
#include <utility>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.checkpoint;

namespace tessera::hub {
namespace {

// The order of patterns has a meaning.
using Json = nlohmann::ordered_json;

/// Keys that do not change what is computed with the stored tensors: how they began or were
/// regularised is over.
constexpr std::array<std::string_view, 15> without_influence = {
    "auto_mapping",   "corda_config",   "ensure_weight_tying",
    "eva_config",     "inference_mode", "lora_dropout",
    "lora_ga_config", "loftq_config",   "megatron_core",
    "peft_type",      "peft_version",   "qalora_group_size",
    "revision",       "runtime_config", "task_type"};
/// Keys that are read one by one.
constexpr std::array<std::string_view, 14> read_keys = {
    "alpha_pattern",  "base_model_name_or_path", "exclude_modules", "init_lora_weights",
    "layers_pattern", "layers_to_transform",     "lora_alpha",      "r",
    "rank_pattern",   "target_modules",          "use_dora",        "use_rslora",
    "fan_in_fan_out", "modules_to_save"};

bool is_nothing(const Json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

// PEFT's patterns are regular expressions. Those that are read here have nothing of these but dots,
// each of which stands for any character, and a ^ at the beginning.

bool is_plain(std::string_view pattern) {
  return pattern.find_first_of("\\^$*+?()[]{}|") == std::string_view::npos;
}

/// Whether the whole text fits.
bool fits(std::string_view pattern, std::string_view text) {
  return std::ranges::equal(pattern, text, [](char p, char t) { return p == '.' || p == t; });
}

/// As PEFT's get_pattern_key, re.match(rf"(.*\.)?({pattern})$", module): the whole name, or what
/// follows one of its dots.
bool matches(std::string_view pattern, std::string_view module) {
  if (pattern.starts_with('^')) {
    return fits(pattern.substr(1), module);
  }
  if (pattern.size() > module.size()) {
    return false;
  }
  const std::size_t begin = module.size() - pattern.size();
  return (begin == 0 || module[begin - 1] == '.') && fits(pattern, module.substr(begin));
}

template <class T>
T first_match(const PeftConfig::Patterns<T>& patterns, std::string_view module, T otherwise) {
  const auto found = std::ranges::find_if(
      patterns, [&](const auto& entry) { return matches(entry.first, module); });
  return found == patterns.end() ? otherwise : found->second;
}

/// Whether a list of target_modules or exclude_modules names the module.
bool is_named(const std::vector<std::string>& list, std::string_view module) {
  return std::ranges::any_of(list, [&](const std::string& name) {
    return module == name || module.ends_with("." + name);
  });
}

/// The number that `text` begins with before a dot; nothing where there is none.
std::optional<std::int64_t> number_before_dot(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end != text.data() + text.size() && *end == '.';
  return whole && text.front() != '-' ? std::optional(number) : std::nullopt;
}

/// The number of the layer that a module is in: the first one that is a part of its name, below
/// two other parts where no pattern says what comes before it.
std::optional<std::int64_t> layer_of(std::string_view module,
                                     const std::vector<std::string>& patterns) {
  const auto after = [&](std::string_view before) -> std::optional<std::int64_t> {
    for (std::size_t at = 0; at + before.size() < module.size(); ++at) {
      if ((at == 0 || module[at - 1] == '.') && fits(before, module.substr(at, before.size())) &&
          module[at + before.size()] == '.') {
        if (const auto number = number_before_dot(module.substr(at + before.size() + 1))) {
          return number;
        }
      }
    }
    return std::nullopt;
  };
  for (const std::string& pattern : patterns) {
    if (const auto number = after(pattern)) {
      return number;
    }
  }
  int dots = 0;
  for (std::size_t at = 0; patterns.empty() && at < module.size(); ++at) {
    if (module[at] == '.' && ++dots >= 2) {
      if (const auto number = number_before_dot(module.substr(at + 1))) {
        return number;
      }
    }
  }
  return std::nullopt;
}

/// Reads the values, and collects what is wrong with them.
class PeftConfigReader {
 public:
  explicit PeftConfigReader(const Json& json) : json_(json) {}

  PeftConfig config() {
    if (const Json* value = given("r")) {
      if (is_rank(*value)) {
        config_.rank = value->get<std::int64_t>();
      } else {
        wrong("r", "a positive whole number", *value);
      }
    }
    if (const Json* value = given("lora_alpha")) {
      if (is_alpha(*value)) {
        config_.alpha = value->get<double>();
      } else {
        wrong("lora_alpha", "a number", *value);
      }
    }
    config_.rank_stabilized = flag("use_rslora");
    config_.dora = flag("use_dora");
    config_.transposed_weights = flag("fan_in_fan_out");
    if (const Json* saved = given("modules_to_save")) {
      config_.saved_modules = texts("modules_to_save", *saved).value_or(std::vector<std::string>());
    }
    read_patterns("rank_pattern", "a positive whole number", is_rank, config_.ranks);
    read_patterns("alpha_pattern", "a number", is_alpha, config_.alphas);
    read_targets();
    if (const Json* base = given("base_model_name_or_path"); base != nullptr && base->is_string()) {
      config_.base = base->get<std::string>();
    }
    check_others();
    return std::move(config_);
  }

 private:
  static bool is_rank(const Json& value) {
    return value.is_number_integer() && value > 0 && value <= 1'000'000;
  }
  static bool is_alpha(const Json& value) {
    return value.is_number() && std::isfinite(value.get<double>());
  }

  const Json* given(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  void wrong(const std::string& key, const char* expected, const Json& value) {
    problem(fmt::format("{}: expected {}, got {}", key, expected, shown(json_text(value))));
  }
  void problem(std::string text) { config_.problems.push_back(std::move(text)); }

  bool flag(const char* key) {
    const Json* value = given(key);
    if (value != nullptr && !value->is_boolean()) {
      wrong(key, "true or false", *value);
      return false;
    }
    return value != nullptr && value->get<bool>();
  }

  template <class T>
  void read_patterns(const char* key, const char* expected, bool (*good)(const Json&),
                     PeftConfig::Patterns<T>& into) {
    const Json* all = given(key);
    if (all == nullptr) {
      return;
    }
    if (!all->is_object()) {
      wrong(key, "an object", *all);
      return;
    }
    for (const auto& [pattern, value] : all->items()) {
      if (!is_plain(pattern.starts_with('^') ? std::string_view(pattern).substr(1) : pattern)) {
        problem(fmt::format("{}: '{}' is a regular expression (expected the names of modules)", key,
                            shown(pattern)));
      }
      if (good(value)) {
        into.emplace_back(pattern, value.template get<T>());
      } else {
        wrong(fmt::format("{}.{}", key, shown(pattern)), expected, value);
      }
    }
  }

  /// A text, or a list of texts; nothing where it is neither.
  std::optional<std::vector<std::string>> texts(const char* key, const Json& value) {
    const bool list = value.is_array() &&
                      std::ranges::all_of(value, [](const Json& one) { return one.is_string(); });
    if (!list && !value.is_string()) {
      wrong(key, "a text or a list of texts", value);
      return std::nullopt;
    }
    return list ? value.get<std::vector<std::string>>() : std::vector{value.get<std::string>()};
  }

  void read_targets() {
    PeftTargets& targets = config_.targets;
    if (const Json* value = given("target_modules")) {
      const auto all = texts("target_modules", *value);
      targets.all_linear = *value == "all-linear";
      if (all && value->is_array()) {
        targets.names = all;
      } else if (all && !targets.all_linear && is_plain(all->front())) {
        targets.whole = all->front();
      }
    }
    if (const Json* value = given("exclude_modules")) {
      const auto all = texts("exclude_modules", *value);
      if (all && (value->is_array() || is_plain(all->front()))) {
        targets.excluded = *all;
      } else if (all) {
        problem(
            fmt::format("exclude_modules: '{}' is a regular expression (expected the names of "
                        "modules)",
                        shown(all->front())));
      }
    }
    const Json* layers = given("layers_to_transform");
    const auto is_layer = [](const Json& one) { return one.is_number_unsigned(); };
    if (layers != nullptr && layers->is_array() && std::ranges::all_of(*layers, is_layer)) {
      targets.layers = layers->get<std::vector<std::int64_t>>();
    } else if (layers != nullptr && is_layer(*layers)) {
      targets.layers = {layers->get<std::int64_t>()};
    } else if (layers != nullptr) {
      wrong("layers_to_transform", "a whole number or a list of them", *layers);
    }
    if (const Json* value = given("layers_pattern")) {
      targets.layer_patterns = texts("layers_pattern", *value).value_or(std::vector<std::string>());
      std::erase(targets.layer_patterns, "");
      for (const std::string& pattern : targets.layer_patterns) {
        if (!is_plain(pattern)) {
          problem(fmt::format("layers_pattern: '{}' is a regular expression (expected a name)",
                              shown(pattern)));
        }
      }
    }
  }

  void check_others() {
    // The others change the base weights, so the update belongs to other ones than those at hand.
    if (const Json* start = given("init_lora_weights"); start != nullptr && !start->is_boolean() &&
                                                        *start != "gaussian" && *start != "eva" &&
                                                        *start != "orthogonal") {
      problem(fmt::format(
          "init_lora_weights {} is not supported: the update belongs to weights that it changed",
          shown(json_text(*start))));
    }
    for (const auto& [key, value] : json_.items()) {
      const bool known = std::ranges::find(without_influence, key) != without_influence.end() ||
                         std::ranges::find(read_keys, key) != read_keys.end();
      const bool plain_bias = key == "bias" && value == "none";
      if (!known && !plain_bias && !is_nothing(value)) {
        problem(fmt::format("{} {} is not supported", shown(key), shown(json_text(value))));
      }
    }
  }

  const Json& json_;
  PeftConfig config_;
};

/// The modules whose value is not the usual one, as patterns: of those that match a module, its own
/// is the first.
template <class T>
Json patterns_of(const std::map<std::string, T>& values, T usual) {
  std::vector<std::string> modules;
  for (const auto& [module, value] : values) {
    const bool hit = std::ranges::any_of(values, [&](const auto& other) {
      return other.second != usual && matches(other.first, module);
    });
    if (hit) {
      modules.push_back(module);
    }
  }
  // The pattern of another module that matches this one's name is shorter, or has a dot where this
  // name has none.
  const auto key = [](const std::string& module) {
    return std::tuple(-std::ssize(module), std::ranges::count(module, '.'), module);
  };
  std::ranges::sort(modules, {}, key);
  Json patterns = Json::object();
  for (const std::string& module : modules) {
    patterns[module] = values.at(module);
  }
  return patterns;
}

}  // namespace

bool PeftTargets::contains(const std::string& module) const {
  if (is_named(excluded, module)) {
    return false;
  }
  if (all_linear) {
    return module != "lm_head";
  }
  if (whole) {
    return fits(*whole, module);
  }
  if (!names || std::ranges::find(*names, module) != names->end()) {
    return true;
  }
  if (!is_named(*names, module)) {
    return false;
  }
  const auto layer = layers.empty() ? std::nullopt : layer_of(module, layer_patterns);
  return layers.empty() || (layer && std::ranges::find(layers, *layer) != layers.end());
}

nn::LowRankUpdate PeftConfig::of(const std::string& module) const {
  return {.rank = first_match(ranks, module, rank),
          .alpha = first_match(alphas, module, alpha),
          .rank_stabilized = rank_stabilized,
          .dora = dora};
}

PeftConfig read_peft_config(const std::string& file) {
  const ParsedOrderedJson json =
      read_ordered_json_object(file, {.bytes = 16'000'000, .values = 1'000'000, .depth = 16});
  if (!json.problem.empty()) {
    fail_input({.thing = file, .wrong = json.problem});
  }
  const Json kind = json.value.value("peft_type", Json());
  if (kind != "LORA") {
    fail_input({.thing = file,
                .wrong = "it describes another kind of adapter",
                .expected = "peft_type \"LORA\"",
                .got = shown(json_text(kind))});
  }
  return PeftConfigReader(json.value).config();
}

std::string peft_config(const Updates& updates, const std::set<std::string>& modules,
                        const std::string& base) {
  const nn::LowRankUpdate& first = updates.begin()->second;
  std::map<std::string, std::int64_t> ranks;
  std::map<std::string, double> alphas;
  std::set<std::string> kinds;
  double dropout = std::numeric_limits<double>::infinity();
  for (const auto& [module, update] : updates) {
    if (update.dora != first.dora || update.rank_stabilized != first.rank_stabilized) {
      fail_input({.thing = "adapter_config.json",
                  .wrong = fmt::format("'{}' and '{}' have updates of different forms (dora, "
                                       "rank-stabilized scale), which the format cannot describe",
                                       updates.begin()->first, module),
                  .advice = "export the merged weights, without --adapter"});
    }
    ranks.emplace(module, update.rank);
    alphas.emplace(module, update.alpha);
    dropout = std::min(dropout, update.dropout);
    kinds.insert(last_part(module));
  }
  const bool all_of_their_kinds = std::ranges::all_of(modules, [&](const std::string& module) {
    return !kinds.contains(last_part(module)) || updates.contains(module);
  });
  Json targets = Json::array();
  if (all_of_their_kinds) {
    targets = kinds;
  } else {
    for (const auto& [module, update] : updates) {
      targets.push_back(module);
    }
  }
  const Json json = {{"peft_type", "LORA"},
                     {"task_type", "CAUSAL_LM"},
                     {"base_model_name_or_path", base.empty() ? Json() : Json(base)},
                     {"inference_mode", true},
                     {"r", first.rank},
                     {"lora_alpha", first.alpha},
                     {"lora_dropout", dropout},
                     {"use_rslora", first.rank_stabilized},
                     {"use_dora", first.dora},
                     {"rank_pattern", patterns_of(ranks, first.rank)},
                     {"alpha_pattern", patterns_of(alphas, first.alpha)},
                     {"target_modules", std::move(targets)},
                     {"bias", "none"},
                     {"fan_in_fan_out", false},
                     {"init_lora_weights", true},
                     {"modules_to_save", nullptr}};
  return json_text(json, 2);
}

}  // namespace tessera::hub
