module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>

#include "json_parts.hpp"
#include "text_checks.hpp"
module tessera.data;

import tessera.base;
import :records;

namespace tessera::data {

nlohmann::json parsed_record(std::string_view record) {
  if (const std::size_t at = invalid_utf8(record); at != std::string_view::npos) {
    fail_input({.wrong = fmt::format("byte {} is 0x{:02X}, which is not UTF-8", at,
                                     static_cast<unsigned char>(record[at]))});
  }
  ParsedJson json = parse_json_object(record, record_limits);
  if (!json.problem.empty()) {
    fail_input({.wrong = json.problem});
  }
  return std::move(json.value);
}

const std::string& text_member(const nlohmann::json& record, const char* name) {
  const nlohmann::json& value = record[name];
  if (!value.is_string()) {
    fail_input({.wrong = fmt::format("'{}' must be a text", name), .got = value.type_name()});
  }
  return value.get_ref<const std::string&>();
}

void require_labelled(const nlohmann::json& record, const char* name) {
  for (const char* const member : {name, "label"}) {
    if (!record.contains(member)) {
      fail_input({.wrong = fmt::format("'{}' is missing", member),
                  .expected = fmt::format("'{}' and 'label'", name),
                  .advice = "only train.objective=classification reads labels"});
    }
  }
}

std::string label_of(const nlohmann::json& value, const char* what) {
  if (!value.is_number_integer() && !value.is_string()) {
    fail_input({.wrong = fmt::format("{} must be a text", what), .got = value.type_name()});
  }
  std::string label = value.is_string() ? value.get_ref<const std::string&>() : json_text(value);
  constexpr std::size_t longest = 200;
  if (label.empty() || label.size() > longest) {
    fail_input({.wrong = fmt::format("{} has the wrong size", what),
                .expected = fmt::format("1 to {} bytes", longest),
                .got = fmt::format("{}", label.size())});
  }
  return label;
}

std::string label_member(const nlohmann::json& record) {
  return label_of(record["label"], "'label'");
}

std::set<std::string> unread_members(const nlohmann::json& record,
                                     std::initializer_list<std::string_view> read) {
  std::set<std::string> names;
  for (const auto& [name, value] : record.items()) {
    if (std::ranges::find(read, name) == read.end()) {
      names.insert(name);
    }
  }
  return names;
}

}  // namespace tessera::data
