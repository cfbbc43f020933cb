module;
#include <fmt/format.h>

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

const std::string* Options::take(const std::string& name) {
  asked_[name] = true;
  const auto found = given_.find(name);
  return found == given_.end() ? nullptr : &found->second;
}

void Options::wrong(const std::string& name, const char* expected, const std::string& got) const {
  fail_input(fmt::format("{}: option '{}' must be {} (got {})", where_, name, expected, got));
}

bool Options::flag(const std::string& name, bool otherwise) {
  const std::string* const value = take(name);
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = json::parse(*value);
  if (!parsed.is_boolean()) {
    wrong(name, "true or false", *value);
  }
  return parsed.get<bool>();
}

std::int64_t Options::integer(const std::string& name, std::int64_t otherwise) {
  const std::string* const value = take(name);
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = json::parse(*value);
  if (!parsed.is_number_integer()) {
    wrong(name, "a whole number", *value);
  }
  return parsed.get<std::int64_t>();
}

double Options::number(const std::string& name, double otherwise) {
  const std::string* const value = take(name);
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = json::parse(*value);
  if (!parsed.is_number()) {
    wrong(name, "a number", *value);
  }
  return parsed.get<double>();
}

std::string Options::text(const std::string& name, const std::string& otherwise) {
  const std::string* const value = take(name);
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = json::parse(*value);
  if (!parsed.is_string()) {
    wrong(name, "a text", *value);
  }
  return parsed.get<std::string>();
}

std::optional<Placement> Options::optional_placement(const std::string& name) {
  const std::string given = text(name, "");
  if (given.empty()) {
    return std::nullopt;
  }
  try {
    return parse_placement(given);
  } catch (const Error& error) {
    fail_input(fmt::format("{}: option '{}': {}", where_, name, error.what()));
  }
}

Placement Options::placement(const std::string& name, Placement otherwise) {
  return optional_placement(name).value_or(otherwise);
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
