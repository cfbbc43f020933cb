module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.options;

import tessera.base;

namespace tessera {

using nlohmann::json;

struct PluginOptions::State {
  std::string where;
  std::string path;                          // of a table: "groups[0]"
  std::map<std::string, std::string> given;  // values as JSON text
  std::map<std::string, OptionUse> asked;
  std::vector<std::string> order;                         // of asked
  std::map<std::string, std::vector<OptionUse>> entries;  // of each table in a list
  std::map<std::string, std::shared_ptr<State>> tables;   // that were read, by path

  State(std::string_view text, std::string place, std::string inside)
      : where(std::move(place)), path(std::move(inside)) {
    const json parsed = parse_json(text.empty() ? "{}" : text, false);
    if (!parsed.is_object()) {
      fail_input({.where = where, .wrong = "options must be a table", .got = std::string(text)});
    }
    for (const auto& [name, value] : parsed.items()) {
      given[name] = json_text(value);
    }
  }

  std::string path_of(const std::string& name) const {
    return path.empty() ? name : path + "." + name;
  }

  void finish() const {
    std::vector<std::string> known;
    for (const auto& [name, unused] : asked) {
      known.push_back(name);
    }
    for (const auto& [name, value] : given) {
      if (!asked.contains(name)) {
        fail_input({.where = where,
                    .wrong = fmt::format(
                        "there is no option '{}' (options{}: {}){}", path_of(shown(name)),
                        path.empty() ? "" : fmt::format(" of '{}'", path),
                        known.empty() ? "none" : join_words(known), did_you_mean(name, known))});
      }
    }
    for (const auto& [name, table] : tables) {
      table->finish();
    }
  }

  void collect(std::vector<OptionUse>& all) const {
    for (const std::string& name : order) {
      const OptionUse& use = asked.at(name);
      all.push_back({path_of(name), use.expected, use.otherwise, use.doc});
      if (const auto found = entries.find(name); found != entries.end()) {
        for (OptionUse one : found->second) {
          one.name = fmt::format("{}[].{}", path_of(name), one.name);
          all.push_back(std::move(one));
        }
      }
    }
    for (const auto& [name, table] : tables) {
      table->collect(all);
    }
  }
};

PluginOptions::PluginOptions(std::string_view text, std::string where)
    : state_(std::make_shared<State>(text, std::move(where), "")) {}

PluginOptions PluginOptions::inner(const std::string& entry, const std::string& text) {
  const std::string path = path_of(entry);
  PluginOptions options;
  options.state_ = std::make_shared<State>(text, where(), path);
  state_->tables.insert_or_assign(path, options.state_);
  return options;
}

const std::string& PluginOptions::where() const { return state_->where; }
std::string PluginOptions::path_of(const std::string& name) const { return state_->path_of(name); }

const std::string* PluginOptions::take(const std::string& name, const std::string& expected,
                                       std::string otherwise) {
  if (!state_->asked.contains(name)) {
    state_->order.push_back(name);
  }
  state_->asked[name] = {name, expected, std::move(otherwise)};
  const auto found = state_->given.find(name);
  return found == state_->given.end() ? nullptr : &found->second;
}

void PluginOptions::set_default(const std::string& name, std::string otherwise) {
  state_->asked.at(name).otherwise = std::move(otherwise);
}

void PluginOptions::document(const std::string& name, const std::string& doc,
                             const std::vector<OptionUse>& entries) {
  state_->asked.at(name).doc = doc;
  state_->entries[name] = entries;
}

void PluginOptions::wrong(const std::string& name, const std::string& got) const {
  fail_input({.where = where(),
              .wrong = fmt::format("option '{}' must be {}", path_of(name),
                                   state_->asked.at(name).expected),
              .got = got});
}

bool PluginOptions::flag(const std::string& name, bool otherwise) {
  const std::string* const value = take(name, "true or false", otherwise ? "true" : "false");
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = parse_json(*value);
  if (!parsed.is_boolean()) {
    wrong(name, *value);
  }
  return parsed.get<bool>();
}

std::int64_t PluginOptions::integer(const std::string& name, std::int64_t otherwise,
                                    const Range& range) {
  const std::string* const value =
      take(name, expected_number("a whole number", range), fmt::format("{}", otherwise));
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = parse_json(*value);
  if (!parsed.is_number_integer()) {
    const double number = parsed.is_number_float() ? parsed.get<double>() : 0.5;
    if (number == std::floor(number) && std::abs(number) <= 0x1p53) {
      fail_input({.where = where(),
                  .wrong = fmt::format("option '{}' must be a whole number", path_of(name)),
                  .got = *value,
                  .advice = fmt::format("write {:.0f}", number)});
    }
    wrong(name, *value);
  }
  if (!contains(range, parsed.get<double>())) {
    wrong(name, *value);
  }
  return parsed.get<std::int64_t>();
}

double PluginOptions::number(const std::string& name, double otherwise, const Range& range) {
  const std::string* const value =
      take(name, expected_number("a number", range), fmt::format("{}", otherwise));
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = parse_json(*value);
  if (!parsed.is_number() || !contains(range, parsed.get<double>())) {
    wrong(name, *value);
  }
  return parsed.get<double>();
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
  const json parsed = parse_json(*value);
  if (!parsed.is_number() || !fits(parsed.get<double>())) {
    wrong(name, *value);
  }
  return parsed.get<double>();
}

std::string PluginOptions::text(const std::string& name, const std::string& otherwise) {
  const std::string* const value = take(name, "a text", json_text(json(otherwise)));
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = parse_json(*value);
  if (!parsed.is_string()) {
    wrong(name, *value);
  }
  return parsed.get<std::string>();
}

std::vector<double> PluginOptions::numbers(const std::string& name,
                                           const std::vector<double>& otherwise,
                                           const char* expected, bool (*fits)(double)) {
  const std::string* const value = take(name, expected, json_text(json(otherwise)));
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = parse_json(*value);
  if (!parsed.is_array() || parsed.size() != otherwise.size() ||
      !std::ranges::all_of(
          parsed, [&](const json& one) { return one.is_number() && fits(one.get<double>()); })) {
    wrong(name, *value);
  }
  return parsed.get<std::vector<double>>();
}

template <class T, class Fits>
std::vector<T> PluginOptions::list(const std::string& name, const std::vector<T>& otherwise,
                                   const std::string& expected, const std::string& entry_expected,
                                   Fits fits) {
  const std::string* const value = take(name, expected, json_text(json(otherwise)));
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = parse_json(*value);
  if (!parsed.is_array()) {
    wrong(name, *value);
  }
  for (std::size_t i = 0; i < parsed.size(); ++i) {
    if (!fits(parsed[i])) {
      fail_input(
          {.where = where(),
           .wrong = fmt::format("option '{}[{}]' must be {}", path_of(name), i, entry_expected),
           .got = json_text(parsed[i])});
    }
  }
  return parsed.get<std::vector<T>>();
}

std::vector<bool> PluginOptions::flags(const std::string& name,
                                       const std::vector<bool>& otherwise) {
  return list(name, otherwise, "a list of true and false", "true or false",
              [](const json& one) { return one.is_boolean(); });
}

std::vector<std::int64_t> PluginOptions::integers(const std::string& name,
                                                  const std::vector<std::int64_t>& otherwise) {
  return list(name, otherwise, "a list of whole numbers", "a whole number",
              [](const json& one) { return one.is_number_integer(); });
}

std::vector<double> PluginOptions::numbers(const std::string& name,
                                           const std::vector<double>& otherwise) {
  return list(name, otherwise, "a list of numbers", "a number",
              [](const json& one) { return one.is_number(); });
}

std::vector<std::string> PluginOptions::texts(const std::string& name,
                                              const std::vector<std::string>& otherwise) {
  return list(name, otherwise, "a list of texts", "a text",
              [](const json& one) { return one.is_string(); });
}

std::vector<std::string> PluginOptions::choices(const std::string& name,
                                                const std::vector<std::string>& otherwise,
                                                const std::vector<std::string>& choices) {
  const std::string expected = expected_words(choices);
  return list(name, otherwise, "a list of " + expected, expected, [&](const json& one) {
    return one.is_string() && std::ranges::find(choices, one.get<std::string>()) != choices.end();
  });
}

std::string PluginOptions::choice(const std::string& name, const std::string& otherwise,
                                  const std::vector<std::string>& choices) {
  const std::string* const value = take(name, expected_words(choices), json_text(json(otherwise)));
  if (value == nullptr) {
    return otherwise;
  }
  const json parsed = parse_json(*value);
  if (!parsed.is_string() ||
      std::ranges::find(choices, parsed.get<std::string>()) == choices.end()) {
    wrong(name, *value);
  }
  return parsed.get<std::string>();
}

PluginOptions PluginOptions::table(const std::string& name) {
  const std::string* const value = take(name, "a table", "{}");
  if (value != nullptr && !parse_json(*value).is_object()) {
    wrong(name, *value);
  }
  return inner(name, value == nullptr ? "{}" : *value);
}

std::vector<PluginOptions> PluginOptions::tables(const std::string& name) {
  const std::string* const value = take(name, "a list of tables", "[]");
  std::vector<PluginOptions> all;
  if (value == nullptr) {
    return all;
  }
  const json parsed = parse_json(*value);
  if (!parsed.is_array()) {
    wrong(name, *value);
  }
  for (std::size_t i = 0; i < parsed.size(); ++i) {
    if (!parsed[i].is_object()) {
      fail_input({.where = where(),
                  .wrong = fmt::format("option '{}[{}]' must be a table", path_of(name), i),
                  .got = json_text(parsed[i])});
    }
    all.push_back(inner(fmt::format("{}[{}]", name, i), json_text(parsed[i])));
  }
  return all;
}

void PluginOptions::refuse(std::string_view why) const {
  constexpr std::size_t longest = 800;  // it may name what the config says
  const std::string text = shown(why, longest);
  fail_input(
      {.where = where(),
       .wrong = state_->path.empty() ? text : fmt::format("option '{}': {}", state_->path, text)});
}

std::vector<OptionUse> PluginOptions::asked() const {
  std::vector<OptionUse> all;
  state_->collect(all);
  return all;
}

void PluginOptions::finish() const { state_->finish(); }

}  // namespace tessera
