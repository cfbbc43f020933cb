module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <vector>
module tessera.app.server;

import :request_fields;
import tessera.base;

namespace tessera::app {
namespace {

using Json = nlohmann::json;

}  // namespace

Json request_object(std::string_view body) {
  ParsedJson parsed =
      parse_json_object(body, {.bytes = body.size(), .values = 100'000, .depth = 64});
  if (!parsed.problem.empty()) {
    fail_input({.thing = "request", .wrong = parsed.problem});
  }
  return std::move(parsed.value);
}

bool is_count(const Json& value, std::int64_t low, std::int64_t high) {
  constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool huge = value.is_number_unsigned() && value.get<std::uint64_t>() > largest;
  return value.is_number_integer() && !huge && value.get<std::int64_t>() >= low &&
         value.get<std::int64_t>() <= high;
}

void RequestFields::refuse(const char* name, const std::string& expected) const {
  fail_input(
      {.thing = shown(place_ + name, 60), .wrong = "has a wrong value", .expected = expected});
}

const Json* RequestFields::find(const char* name) {
  read_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void RequestFields::read(const char* name, double& into) {
  if (const Json* value = find(name)) {
    if (!value->is_number()) {
      refuse(name, "a number");
    }
    into = value->get<double>();
  }
}

void RequestFields::read(const char* name, bool& into) {
  if (const Json* value = find(name)) {
    if (!value->is_boolean()) {
      refuse(name, "true or false");
    }
    into = value->get<bool>();
  }
}

void RequestFields::read(const char* name, std::string& into) {
  if (const Json* value = find(name)) {
    if (!value->is_string()) {
      refuse(name, "a text");
    }
    into = value->get<std::string>();
  }
}

void RequestFields::read(const char* name, std::int64_t low, std::int64_t high,
                         std::int64_t& into) {
  if (const Json* value = find(name)) {
    if (!is_count(*value, low, high)) {
      refuse(name, fmt::format("a whole number from {} to {}", low, high));
    }
    into = value->get<std::int64_t>();
  }
}

std::vector<std::int64_t> RequestFields::read_ids(const char* name, std::int64_t vocab,
                                                  std::size_t most) {
  std::vector<std::int64_t> ids;
  const Json* list = find(name);
  if (list == nullptr) {
    return ids;
  }
  const bool fits =
      list->is_array() && list->size() <= most &&
      std::ranges::all_of(*list, [&](const Json& id) { return is_count(id, 0, vocab - 1); });
  if (!fits) {
    refuse(name, fmt::format("a list of at most {} ids from 0 to {}", most, vocab - 1));
  }
  for (const Json& id : *list) {
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

void RequestFields::ignore(std::initializer_list<const char*> names) {
  read_.insert(names.begin(), names.end());
}

void RequestFields::ignore_empty(std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    const auto found = object_.find(name);
    if (found != object_.end() &&
        (*found == 0 || *found == false || *found == "" || found->empty())) {
      read_.insert(name);
    }
  }
}

void RequestFields::only(const char* name, const Json& expected, const char* text) {
  const Json* value = find(name);
  if (value != nullptr && *value != expected) {
    fail_input({.thing = place_ + name, .wrong = "is not supported", .expected = text});
  }
}

void RequestFields::check_rest() const {
  for (const auto& [name, value] : object_.items()) {
    if (!value.is_null() && !read_.contains(name)) {
      fail_input({.thing = shown(place_ + name, 60),
                  .wrong = "is not supported",
                  .advice = "leave it out"});
    }
  }
}

}  // namespace tessera::app
