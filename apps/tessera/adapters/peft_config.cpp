#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.checkpoint;

#include "adapters/peft_config.hpp"

namespace tessera::app {
namespace {

using Json = nlohmann::json;

/// Keys that do not change what is computed with the stored tensors: which layers have an update is
/// known from these, and how they began or were regularised is over.
constexpr std::array<std::string_view, 24> without_influence = {"auto_mapping",
                                                                "base_model_name_or_path",
                                                                "corda_config",
                                                                "ensure_weight_tying",
                                                                "eva_config",
                                                                "exclude_modules",
                                                                "inference_mode",
                                                                "layers_pattern",
                                                                "layers_to_transform",
                                                                "lora_dropout",
                                                                "lora_ga_config",
                                                                "loftq_config",
                                                                "megatron_core",
                                                                "peft_type",
                                                                "peft_version",
                                                                "qalora_group_size",
                                                                "revision",
                                                                "runtime_config",
                                                                "target_modules",
                                                                "task_type",
                                                                "r",
                                                                "lora_alpha",
                                                                "rank_pattern",
                                                                "alpha_pattern"};
constexpr std::array<std::string_view, 3> read_flags = {"use_rslora", "use_dora",
                                                        "init_lora_weights"};

bool is_nothing(const Json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

/// Whether PEFT's pattern, without anything of regular expressions but dots, matches the module:
/// it, or what follows one of its dots.
bool matches(const std::string& pattern, const std::string& module) {
  return module == pattern || module.ends_with("." + pattern);
}

/// Reads the values, and collects what is wrong with them.
class Reading {
 public:
  explicit Reading(const Json& json) : json_(json) {}

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
    const Json ranks = patterns("rank_pattern");
    for (const auto& [pattern, value] : ranks.items()) {
      if (is_rank(value)) {
        config_.ranks[pattern] = value.get<std::int64_t>();
      } else {
        wrong("rank_pattern." + pattern, "a positive whole number", value);
      }
    }
    const Json alphas = patterns("alpha_pattern");
    for (const auto& [pattern, value] : alphas.items()) {
      if (is_alpha(value)) {
        config_.alphas[pattern] = value.get<double>();
      } else {
        wrong("alpha_pattern." + pattern, "a number", value);
      }
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
    config_.problems.push_back(
        fmt::format("{}: expected {}, got {}", key, expected, json_text(value)));
  }

  bool flag(const char* key) {
    const Json* value = given(key);
    if (value != nullptr && !value->is_boolean()) {
      wrong(key, "true or false", *value);
      return false;
    }
    return value != nullptr && value->get<bool>();
  }

  Json patterns(const char* key) {
    const Json* value = given(key);
    if (value == nullptr) {
      return Json::object();
    }
    if (!value->is_object()) {
      wrong(key, "an object", *value);
      return Json::object();
    }
    for (const auto& [pattern, ignored] : value->items()) {
      if (pattern.find_first_of("\\^$*+?()[]{}|") != std::string::npos) {
        config_.problems.push_back(fmt::format(
            "{}: '{}' is a regular expression (expected the names of modules)", key, pattern));
      }
    }
    return *value;
  }

  void check_others() {
    // The others change the base weights, so the update belongs to other ones than those at hand.
    if (const Json* start = given("init_lora_weights"); start != nullptr && !start->is_boolean() &&
                                                        *start != "gaussian" && *start != "eva" &&
                                                        *start != "orthogonal") {
      config_.problems.push_back(fmt::format(
          "init_lora_weights {} is not supported: the update belongs to weights that it changed",
          json_text(*start)));
    }
    for (const auto& [key, value] : json_.items()) {
      const bool known = std::ranges::find(without_influence, key) != without_influence.end() ||
                         std::ranges::find(read_flags, key) != read_flags.end();
      const bool plain_bias = key == "bias" && value == "none";
      if (!known && !plain_bias && !is_nothing(value)) {
        config_.problems.push_back(fmt::format("{} {} is not supported", key, json_text(value)));
      }
    }
  }

  const Json& json_;
  PeftConfig config_;
};

}  // namespace

nn::LowRankUpdate PeftConfig::of(const std::string& module) const {
  nn::LowRankUpdate update{
      .rank = rank, .alpha = alpha, .rank_stabilized = rank_stabilized, .dora = dora};
  for (const auto& [pattern, value] : ranks) {
    update.rank = matches(pattern, module) ? value : update.rank;
  }
  for (const auto& [pattern, value] : alphas) {
    update.alpha = matches(pattern, module) ? value : update.alpha;
  }
  return update;
}

PeftConfig read_peft_config(const std::string& file) {
  const ParsedJson json =
      read_json_object(file, {.bytes = 16'000'000, .values = 1'000'000, .depth = 16});
  if (!json.problem.empty()) {
    fail_input({.thing = file, .wrong = json.problem});
  }
  const Json kind = json.value.value("peft_type", Json());
  if (kind != "LORA") {
    fail_input({.thing = file,
                .wrong = "it describes another kind of adapter",
                .expected = "peft_type \"LORA\"",
                .got = json_text(kind)});
  }
  return Reading(json.value).config();
}

std::string peft_config(const Updates& updates, const std::set<std::string>& modules,
                        const std::string& base) {
  const nn::LowRankUpdate& first = updates.begin()->second;
  Json ranks = Json::object();
  Json alphas = Json::object();
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
    if (update.rank != first.rank) {
      ranks[module] = update.rank;
    }
    if (update.alpha != first.alpha) {
      alphas[module] = update.alpha;
    }
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
                     {"rank_pattern", std::move(ranks)},
                     {"alpha_pattern", std::move(alphas)},
                     {"target_modules", std::move(targets)},
                     {"bias", "none"},
                     {"fan_in_fan_out", false},
                     {"init_lora_weights", true},
                     {"modules_to_save", nullptr}};
  return json_text(json, 2);
}

}  // namespace tessera::app
