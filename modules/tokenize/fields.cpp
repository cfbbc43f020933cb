#include "fields.hpp"

#include <fmt/format.h>

#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "utf8.hpp"

import tessera.base;

namespace tessera::tokenize {

using Json = nlohmann::json;

std::string json_shown(const Json& value) {
  if (value.is_object() || value.is_array()) {
    return fmt::format("{} of {}", value.is_object() ? "an object" : "a list", value.size());
  }
  return shown(json_text(value), 60);
}

Fields::Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) {
    fail_input({.thing = where_,
                .wrong = "has the wrong type",
                .expected = "an object",
                .got = json_shown(object)});
  }
}

void Fields::wrong(const std::string& name, const std::string& expected) const {
  const auto at = object_.find(name);
  fail_input({.thing = path(name),
              .wrong = at == object_.end() ? "is missing" : "is not supported",
              .expected = expected,
              .got = at == object_.end() ? "" : json_shown(*at)});
}

const Json* Fields::find(const std::string& name) {
  read_.insert(name);
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

bool Fields::flag(const std::string& name, bool otherwise) {
  const Json* value = find(name);
  if (value != nullptr && !value->is_boolean()) {
    wrong(name, "true or false");
  }
  return value == nullptr ? otherwise : value->get<bool>();
}

std::int64_t Fields::integer(const std::string& name, std::int64_t low, std::int64_t high,
                             std::int64_t otherwise) {
  const Json* value = find(name);
  if (value == nullptr) {
    return otherwise;
  }
  if (!value->is_number_integer() || *value < low || *value > high) {
    wrong(name, fmt::format("an integer from {} to {}", low, high));
  }
  return value->get<std::int64_t>();
}

std::string Fields::text(const std::string& name, const std::string& otherwise) {
  return has(name) ? text(name) : otherwise;
}

std::string Fields::text(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr || !value->is_string()) {
    wrong(name, "a text");
  }
  return value->get<std::string>();
}

char32_t Fields::character(const std::string& name) {
  const std::string all = text(name);
  if (all.empty() || character_at(all, 0).bytes != all.size()) {
    wrong(name, "one character");
  }
  return character_at(all, 0).code;
}

std::string Fields::choice(const std::string& name,
                           std::initializer_list<std::string_view> choices) {
  const Json* value = find(name);
  for (const std::string_view one : choices) {
    if (value != nullptr && *value == one) {
      return std::string(one);
    }
  }
  wrong(name, fmt::format("one of {}",
                          join_words(std::vector<std::string>(choices.begin(), choices.end()))));
}

const Json& Fields::list(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr || !value->is_array()) {
    wrong(name, "a list");
  }
  return *value;
}

const Json& Fields::object(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr || !value->is_object()) {
    wrong(name, "an object");
  }
  return *value;
}

void Fields::ignore(std::initializer_list<std::string_view> names) {
  read_.insert(names.begin(), names.end());
}

void Fields::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (!value.is_null() && !read_.contains(name)) {
      fail_input({.thing = path(shown(name)),
                  .wrong = fmt::format("the field is not supported (got {})", json_shown(value))});
    }
  }
}

}  // namespace tessera::tokenize
