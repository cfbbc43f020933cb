module;
#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>
module tessera.models;

import tessera.base;

namespace tessera::models {
namespace {

template <class T>
const T& typed(const std::map<std::string, ModelValue>& values, std::string_view name) {
  const auto found = values.find(std::string(name));
  if (found == values.end() || !std::holds_alternative<T>(found->second)) {
    fail({.thing = fmt::format("model value '{}'", name),
          .wrong = found == values.end() ? "there is none" : "it has another type"});
  }
  return std::get<T>(found->second);
}

}  // namespace

ModelValues::ModelValues(std::span<const ModelKey> keys) {
  for (const ModelKey& key : keys) {
    values_.emplace(key.name, key.initial);
  }
}

std::int64_t ModelValues::integer(std::string_view name) const {
  return typed<std::int64_t>(values_, name);
}
double ModelValues::number(std::string_view name) const { return typed<double>(values_, name); }
bool ModelValues::flag(std::string_view name) const { return typed<bool>(values_, name); }
const std::string& ModelValues::text(std::string_view name) const {
  return typed<std::string>(values_, name);
}
const std::vector<std::int64_t>& ModelValues::integers(std::string_view name) const {
  return typed<std::vector<std::int64_t>>(values_, name);
}
const std::vector<double>& ModelValues::numbers(std::string_view name) const {
  return typed<std::vector<double>>(values_, name);
}

ModelValue& ModelValues::at(std::string_view name) {
  const auto found = values_.find(std::string(name));
  if (found == values_.end()) {
    fail({.thing = fmt::format("model value '{}'", name), .wrong = "there is none"});
  }
  return found->second;
}

void ModelValues::set(const std::string& name, ModelValue value) {
  values_.insert_or_assign(name, std::move(value));
}

bool ModelValues::operator==(const ModelValues& other) const { return values_ == other.values_; }

bool ModelSizes::operator==(const ModelSizes& other) const {
  return vocab == other.vocab && max_positions == other.max_positions && values == other.values;
}

}  // namespace tessera::models
