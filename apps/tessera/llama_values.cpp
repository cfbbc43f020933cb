#include "llama_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "llama_keys.hpp"

import tessera.base;

namespace tessera::app {
namespace {

using Json = nlohmann::json;

bool present(const Json& in, const char* key) { return in.contains(key) && !in[key].is_null(); }

}  // namespace

LlamaValues::LlamaValues(const Json& json, std::string name)
    : json_(json), name_(std::move(name)) {}

bool LlamaValues::has(const char* key) const { return present(json_, key); }

void LlamaValues::problem(std::string text) { problems_.push_back(std::move(text)); }

void LlamaValues::throw_if_any() const {
  if (problems_.size() == 1) {
    fail_input({.thing = name_, .wrong = problems_[0]});
  }
  if (!problems_.empty()) {
    std::string text = fmt::format("{}: {} problems", name_, problems_.size());
    for (const std::string& problem : problems_) {
      text += "\n  " + problem;
    }
    fail_input(text);
  }
}

std::int64_t LlamaValues::size(const char* key, std::int64_t limit) {
  if (!has(key)) {
    problem(fmt::format("{} is missing", key));
  }
  return size(key, limit, 1);
}

std::int64_t LlamaValues::size(const char* key, std::int64_t limit, std::int64_t fallback) {
  if (!has(key)) {
    return fallback;
  }
  const Json& value = json_[key];
  if (!value.is_number_integer() || !(value > 0) || value > limit) {
    problem(fmt::format("{}: expected a positive integer of at most {}, got {}", key, limit,
                        shown(value)));
    return fallback;
  }
  return value.get<std::int64_t>();
}

double LlamaValues::positive(const char* key, double fallback) {
  return positive_in(json_, key, fallback);
}

double LlamaValues::positive_in(const Json& object, const char* key, double fallback) {
  if (!present(object, key)) {
    return fallback;
  }
  const Json& value = object[key];
  if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<double>())) {
    problem(fmt::format("{}: expected a positive number, got {}", key, shown(value)));
    return fallback;
  }
  return value.get<double>();
}

bool LlamaValues::flag(const char* key) {
  if (!has(key)) {
    return false;
  }
  if (!json_[key].is_boolean()) {
    problem(fmt::format("{}: expected true or false, got {}", key, shown(json_[key])));
    return false;
  }
  return json_[key].get<bool>();
}

std::vector<std::int64_t> LlamaValues::tokens(const char* key, std::int64_t vocab,
                                              std::int64_t fallback) {
  std::vector<std::int64_t> ids;
  const auto found = json_.find(key);
  if (found == json_.end()) {
    return fallback < vocab ? std::vector{fallback} : ids;
  }
  const Json list = found->is_array()  ? *found
                    : found->is_null() ? Json::array()
                                       : Json::array({*found});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= vocab) {
      problem(fmt::format("{}: expected null, a token id from 0 to {} or a list of them, got {}",
                          key, vocab - 1, shown(*found)));
      return {};
    }
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

std::string LlamaValues::dtype() {
  std::string type;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!has(key)) {
      continue;
    }
    const Json& value = json_[key];
    if (value != "float32" && value != "bfloat16" && value != "float16" && value != "float64") {
      problem(fmt::format("{} {} is not supported (only float32, bfloat16, float16 or float64)",
                          key, shown(value)));
    } else if (!type.empty() && value != type) {
      problem(fmt::format("dtype is \"{}\", but torch_dtype is {}; remove one of the two", type,
                          shown(value)));
    } else {
      type = value.get<std::string>();
    }
  }
  return type;
}

double LlamaValues::rope_theta() {
  std::optional<double> theta;
  const auto take = [&](const Json& object) {
    if (!present(object, "rope_theta")) {
      return;
    }
    const double value = positive_in(object, "rope_theta", 1);
    if (theta && *theta != value) {
      problem(fmt::format("rope_theta is given twice, as {} and as {}; remove one of the two",
                          *theta, value));
    }
    theta = value;
  };
  take(json_);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!has(key)) {
      continue;
    }
    if (!json_[key].is_object()) {
      problem(fmt::format("{}: expected an object, got {}", key, shown(json_[key])));
      continue;
    }
    take(json_[key]);
    check_rope(key, json_[key]);
  }
  return theta.value_or(10000.0);
}

/// Only the default embedding is computed; what else is set there would be ignored in silence.
void LlamaValues::check_rope(const char* key, const Json& rope) {
  const std::vector<std::string> known = {"rope_theta", "rope_type", "type",
                                          "partial_rotary_factor"};
  for (const char* type : {"rope_type", "type"}) {
    if (present(rope, type) && rope[type] != "default") {
      problem(fmt::format("{}.{} {} is not supported (only \"default\")", key, type,
                          shown(rope[type])));
      return;
    }
  }
  if (present(rope, "factor") && !present(rope, "rope_type") && !present(rope, "type")) {
    problem(fmt::format("{}: has a factor but no type; only \"default\" is supported", key));
    return;
  }
  if (present(rope, "partial_rotary_factor") && rope["partial_rotary_factor"] != 1.0) {
    problem(fmt::format("{}.partial_rotary_factor {} is not supported (only 1)", key,
                        shown(rope["partial_rotary_factor"])));
  }
  for (const auto& [name, value] : rope.items()) {
    if (!value.is_null() && std::ranges::find(known, name) == known.end()) {
      problem(fmt::format("{}.{}: the default rotary embedding has no such setting{}; remove it",
                          key, name, did_you_mean(name, known)));
    }
  }
}

}  // namespace tessera::app
