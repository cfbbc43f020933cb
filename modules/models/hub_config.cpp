module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
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

HubConfig::HubConfig(std::shared_ptr<State> state) : state_(std::move(state)) {}

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
  return positive_number(state_->json, key, otherwise, state_->problems);
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

}  // namespace tessera::models
