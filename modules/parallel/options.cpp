module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.parallel;

import tessera.base;
import tessera.placement;
import tessera.options;

namespace tessera::parallel {

using nlohmann::json;

std::optional<Placement> Options::optional_placement(const std::string& name) {
  const std::string* const value = take(name, "a placement", "none");
  if (value == nullptr) {
    return std::nullopt;
  }
  const json parsed = parse_json(*value);
  if (!parsed.is_string()) {
    wrong(name, *value);
  }
  try {
    return parse_placement(parsed.get<std::string>());
  } catch (const Error& error) {
    fail_at(fmt::format("{}: option '{}'", where(), path_of(name)), error);
  }
}

Placement Options::placement(const std::string& name, Placement otherwise) {
  const Placement placement = optional_placement(name).value_or(otherwise);
  set_default(name, json_text(json(to_string(otherwise))));
  return placement;
}

ValuePlacements Options::placements(const std::string& name, std::optional<Placement> otherwise) {
  const std::string* const value =
      take(name, "a placement, a list of placements by position, or a table of them by name",
           otherwise ? json_text(json(to_string(*otherwise))) : "none");
  if (value == nullptr) {
    return otherwise ? ValuePlacements{{"", 0, otherwise}} : ValuePlacements{};
  }
  const json parsed = parse_json(*value);
  ValuePlacements all;
  const auto add = [&](const std::string& key, std::size_t position, const json& one) {
    if (!one.is_string()) {
      wrong(name, json_text(one));
    }
    const auto text = one.get<std::string>();
    try {
      all.push_back(
          {key, position, text == "None" ? std::nullopt : std::optional(parse_placement(text))});
    } catch (const Error& error) {
      ErrorFields fields = error.fields();
      fields.where = fmt::format("{}: option '{}'", where(), path_of(name));
      fields.advice += "; \"None\" leaves a value as it comes";
      fail_input(std::move(fields));
    }
  };
  if (parsed.is_array()) {
    for (std::size_t i = 0; i < parsed.size(); ++i) {
      add("", i, parsed[i]);
    }
  } else if (parsed.is_object()) {
    for (const auto& [key, one] : parsed.items()) {
      add(key, 0, one);
    }
  } else {
    add("", 0, parsed);
  }
  return all;
}

std::vector<Options> Options::tables(const std::string& name) {
  std::vector<Options> all;
  for (PluginOptions& table : PluginOptions::tables(name)) {
    all.emplace_back(std::move(table));
  }
  return all;
}

std::string option_json(const ValuePlacements& value) {
  json all = json::array();
  json by_name = json::object();
  for (const ValuePlacement& one : value) {
    const std::string text = one.placement ? to_string(*one.placement) : "None";
    if (!one.name.empty()) {
      by_name[one.name] = text;
      continue;
    }
    while (all.size() <= one.position) {
      all.push_back("None");
    }
    all[one.position] = text;
  }
  return value.empty() ? std::string() : json_text(by_name.empty() ? all : by_name);
}

}  // namespace tessera::parallel

namespace tessera {

void read_option(PluginOptions& options, const OptionKey& key, Placement& value) {
  value = parallel::Options(options).placement(key.name, value);
}

void read_option(PluginOptions& options, const OptionKey& key, std::optional<Placement>& value) {
  parallel::Options placements(options);
  if (value) {
    value = placements.placement(key.name, *value);
  } else {
    value = placements.optional_placement(key.name);
  }
}

void read_option(PluginOptions& options, const OptionKey& key, parallel::ValuePlacements& value) {
  value = parallel::Options(options).placements(
      key.name, value.empty() ? std::nullopt : value.front().placement);
}

std::string option_json(const Placement& value) { return option_json(to_string(value)); }

std::string option_json(const std::optional<Placement>& value) {
  return value ? option_json(*value) : std::string();
}

}  // namespace tessera
