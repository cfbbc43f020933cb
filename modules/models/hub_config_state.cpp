module;
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.models;

import tessera.base;
import :hub_config_state;

namespace tessera::models {

using Json = nlohmann::json;

bool present(const Json& object, const std::string& key) {
  return object.contains(key) && !object[key].is_null();
}

std::string json_shown(const Json& value) { return shown(json_text(value), 60); }

double positive_number(const Json& object, const std::string& key, double otherwise,
                       std::vector<std::string>& problems) {
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

HubConfig::State::State(Json object, std::string file)
    : document(std::make_shared<Json>(std::move(object))), json(*document), name(std::move(file)) {}

void HubConfig::State::refuse(const std::string& key, const Json& value, const std::string& only,
                              const std::string& reason) {
  problems.push_back(
      fmt::format("{} {} is not supported (only {}): {}", key, json_shown(value), only, reason));
}

void HubConfig::State::give(const std::string& key, const std::string& where, const Json& value) {
  if (present(json, key) && json[key] != value) {
    problems.push_back(fmt::format("{} is {}, but {} is {}; remove one of the two", where,
                                   json_shown(value), key, json_shown(json[key])));
  }
  json[key] = value;
}

void HubConfig::State::give_parts(const std::string& where, const Json& object,
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

void HubConfig::State::check_names() {
  std::vector<std::string> changing(read.begin(), read.end());
  changing.insert(changing.end(), checked.begin(), checked.end());
  std::vector<std::string> unknown;
  for (const auto& [key, value] : json.items()) {
    if (read.contains(key) || checked.contains(key) || ignored.contains(key)) {
      continue;
    }
    if (const std::string nearest = nearest_name(key, changing); !nearest.empty()) {
      problems.push_back(fmt::format("{}: unknown key; did you mean '{}'? Correct it, or remove it",
                                     shown(key), nearest));
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

void HubConfig::State::throw_if_any() const {
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

}  // namespace tessera::models
