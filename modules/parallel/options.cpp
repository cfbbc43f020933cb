module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.parallel;

import tessera.base;
import tessera.placement;

namespace tessera::parallel {

using nlohmann::json;

Options::Options(std::string_view text, std::string where) : where_(std::move(where)) {
  const json parsed = json::parse(text.empty() ? "{}" : text, nullptr, false);
  if (!parsed.is_object()) {
    fail_input(fmt::format("{}: options must be a table (got {})", where_, text));
  }
  for (const auto& [name, value] : parsed.items()) {
    given_[name] = value.dump();
  }
}

const std::string* Options::take(const std::string& name, const char* expected,
                                 std::string otherwise) {
  asked_[name] = {name, expected, std::move(otherwise)};
  const auto found = given_.find(name);
  return found == given_.end() ? nullptr : &found->second;
}

void Options::wrong(const std::string& name, const std::string& got) const {
  fail_input(fmt::format("{}: option '{}' must be {} (got {})", where_, name,
                         asked_.at(name).expected, got));
}

bool Options::flag(const std::string& name, bool otherwise) {
  const std::string* const value = take(name, "true or false", otherwise ? "true" : "false");
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = json::parse(*value);
  if (!parsed.is_boolean()) {
    wrong(name, *value);
  }
  return parsed.get<bool>();
}

std::int64_t Options::integer(const std::string& name, std::int64_t otherwise) {
  const std::string* const value = take(name, "a whole number", fmt::format("{}", otherwise));
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = json::parse(*value);
  if (!parsed.is_number_integer()) {
    wrong(name, *value);
  }
  return parsed.get<std::int64_t>();
}

double Options::number(const std::string& name, double otherwise) {
  const std::string* const value = take(name, "a number", fmt::format("{}", otherwise));
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = json::parse(*value);
  if (!parsed.is_number()) {
    wrong(name, *value);
  }
  return parsed.get<double>();
}

std::string Options::text(const std::string& name, const std::string& otherwise) {
  const std::string* const value = take(name, "a text", json(otherwise).dump());
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = json::parse(*value);
  if (!parsed.is_string()) {
    wrong(name, *value);
  }
  return parsed.get<std::string>();
}

std::optional<Placement> Options::optional_placement(const std::string& name) {
  const std::string* const value = take(name, "a placement", "none");
  if (value == nullptr) {
    return std::nullopt;
  }
  const json parsed = json::parse(*value);
  if (!parsed.is_string()) {
    wrong(name, *value);
  }
  try {
    return parse_placement(parsed.get<std::string>());
  } catch (const Error& error) {
    fail_input(fmt::format("{}: option '{}': {}", where_, name, error.what()));
  }
}

Placement Options::placement(const std::string& name, Placement otherwise) {
  const Placement placement = optional_placement(name).value_or(otherwise);
  asked_[name].otherwise = json(to_string(otherwise)).dump();
  return placement;
}

ValuePlacements Options::placements(const std::string& name, std::optional<Placement> otherwise) {
  const std::string* const value =
      take(name, "a placement, a list of placements by position, or a table of them by name",
           otherwise ? json(to_string(*otherwise)).dump() : "none");
  if (value == nullptr) {
    return otherwise ? ValuePlacements{{"", 0, otherwise}} : ValuePlacements{};
  }
  const json parsed = json::parse(*value);
  ValuePlacements all;
  const auto add = [&](const std::string& key, std::size_t position, const json& one) {
    if (!one.is_string()) {
      wrong(name, one.dump());
    }
    const auto text = one.get<std::string>();
    try {
      all.push_back(
          {key, position, text == "None" ? std::nullopt : std::optional(parse_placement(text))});
    } catch (const Error& error) {
      fail_input(fmt::format("{}: option '{}': {}; \"None\" leaves a value as it comes", where_,
                             name, error.what()));
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

std::vector<OptionUse> Options::asked() const {
  std::vector<OptionUse> all;
  for (const auto& [name, use] : asked_) {
    all.push_back(use);
  }
  return all;
}

void Options::finish() const {
  std::vector<std::string> known;
  for (const auto& [name, unused] : asked_) {
    known.push_back(name);
  }
  for (const auto& [name, value] : given_) {
    if (!asked_.contains(name)) {
      fail_input(fmt::format("{}: there is no option '{}' (options: {}){}", where_, name,
                             known.empty() ? "none" : join_words(known),
                             did_you_mean(name, known)));
    }
  }
}

}  // namespace tessera::parallel
