module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.options;

import tessera.base;

namespace tessera {

using nlohmann::json;

PluginOptions::PluginOptions(std::string_view text, std::string where) : where_(std::move(where)) {
  const json parsed = json::parse(text.empty() ? "{}" : text, nullptr, false);
  if (!parsed.is_object()) {
    fail_input(fmt::format("{}: options must be a table (got {})", where_, text));
  }
  for (const auto& [name, value] : parsed.items()) {
    given_[name] = value.dump();
  }
}

const std::string* PluginOptions::take(const std::string& name, const char* expected,
                                       std::string otherwise) {
  asked_[name] = {name, expected, std::move(otherwise)};
  const auto found = given_.find(name);
  return found == given_.end() ? nullptr : &found->second;
}

void PluginOptions::set_default(const std::string& name, std::string otherwise) {
  asked_.at(name).otherwise = std::move(otherwise);
}

void PluginOptions::wrong(const std::string& name, const std::string& got) const {
  fail_input(fmt::format("{}: option '{}' must be {} (got {})", where_, name,
                         asked_.at(name).expected, got));
}

bool PluginOptions::flag(const std::string& name, bool otherwise) {
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

std::int64_t PluginOptions::integer(const std::string& name, std::int64_t otherwise) {
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

double PluginOptions::number(const std::string& name, double otherwise) {
  return number(name, otherwise, "a number", [](double) { return true; });
}

double PluginOptions::number(const std::string& name, double otherwise, const char* expected,
                             bool (*fits)(double)) {
  const std::optional<double> value = optional_number(name, expected, fits);
  set_default(name, fmt::format("{}", otherwise));
  return value.value_or(otherwise);
}

std::optional<double> PluginOptions::optional_number(const std::string& name, const char* expected,
                                                     bool (*fits)(double)) {
  const std::string* const value = take(name, expected, "none");
  if (value == nullptr) {
    return std::nullopt;
  }
  const json parsed = json::parse(*value);
  if (!parsed.is_number() || !fits(parsed.get<double>())) {
    wrong(name, *value);
  }
  return parsed.get<double>();
}

std::string PluginOptions::text(const std::string& name, const std::string& otherwise) {
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

std::vector<double> PluginOptions::numbers(const std::string& name,
                                           const std::vector<double>& otherwise,
                                           const char* expected, bool (*fits)(double)) {
  const std::string* const value = take(name, expected, json(otherwise).dump());
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = json::parse(*value);
  if (!parsed.is_array() || parsed.size() != otherwise.size() ||
      !std::ranges::all_of(
          parsed, [&](const json& one) { return one.is_number() && fits(one.get<double>()); })) {
    wrong(name, *value);
  }
  return parsed.get<std::vector<double>>();
}

std::vector<std::string> PluginOptions::texts(const std::string& name) {
  const std::string* const value = take(name, "a list of texts", "[]");
  if (value == nullptr) {
    return {};
  }
  const json parsed = json::parse(*value);
  if (!parsed.is_array() ||
      !std::ranges::all_of(parsed, [](const json& one) { return one.is_string(); })) {
    wrong(name, *value);
  }
  return parsed.get<std::vector<std::string>>();
}

std::vector<PluginOptions> PluginOptions::tables(const std::string& name) {
  const std::string* const value = take(name, "a list of tables", "[]");
  std::vector<PluginOptions> all;
  if (value == nullptr) {
    return all;
  }
  const json parsed = json::parse(*value);
  if (!parsed.is_array() ||
      !std::ranges::all_of(parsed, [](const json& one) { return one.is_object(); })) {
    wrong(name, *value);
  }
  for (std::size_t i = 0; i < parsed.size(); ++i) {
    all.emplace_back(parsed[i].dump(), fmt::format("{}: {}[{}]", where_, name, i));
  }
  return all;
}

void PluginOptions::refuse(std::string_view why) const {
  fail_input(fmt::format("{}: {}", where_, why));
}

std::vector<OptionUse> PluginOptions::asked() const {
  std::vector<OptionUse> all;
  for (const auto& [name, use] : asked_) {
    all.push_back(use);
  }
  return all;
}

void PluginOptions::finish() const {
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

}  // namespace tessera
