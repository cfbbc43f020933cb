#include "json_parts.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tessera/json.hpp>

#include "jinja/value.hpp"

namespace tessera::data {
namespace {

constexpr std::string_view blanks = " \t\r\n";

std::size_t skip_blanks(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(blanks, at), text.size());
}

/// Behind the text that begins at `at` with its quote.
std::size_t end_of_text(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    at += text[at] == '\\' ? 1 : 0;
  }
  return std::min(at + 1, text.size());
}

std::size_t end_of_value(std::string_view text, std::size_t at) {
  std::size_t depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = end_of_text(text, at);
    } else if (c == '{' || c == '[') {
      ++depth;
      ++at;
    } else if (c == '}' || c == ']') {
      if (depth == 0) {
        return at;  // of what contains it
      }
      --depth;
      ++at;
    } else if (depth == 0) {
      return std::min(text.find_first_of(",]} \t\r\n", at), text.size());
    } else {
      ++at;
      continue;
    }
    if (depth == 0) {
      return at;
    }
  }
  return at;
}

std::string name_of(std::string_view written) {
  return written.find('\\') == std::string_view::npos
             ? std::string(written.substr(1, written.size() - 2))
             : parse_json(written).get<std::string>();
}

/// Where the next part begins, behind the comma before it.
std::size_t next_part(std::string_view text, std::size_t at) {
  at = skip_blanks(text, at);
  return at < text.size() && text[at] == ',' ? skip_blanks(text, at + 1) : at;
}

/// Behind the bracket with which an object or a list begins.
std::size_t first_part(std::string_view text) {
  return skip_blanks(text, std::min(skip_blanks(text, 0) + 1, text.size()));
}

}  // namespace

std::vector<std::pair<std::string, std::string_view>> members_as_written(std::string_view object) {
  std::vector<std::pair<std::string, std::string_view>> members;
  for (std::size_t at = first_part(object); at < object.size() && object[at] != '}';) {
    const std::size_t name_end = end_of_text(object, at);
    const std::size_t value = skip_blanks(object, skip_blanks(object, name_end) + 1);  // behind ":"
    const std::size_t end = end_of_value(object, value);
    members.emplace_back(name_of(object.substr(at, name_end - at)),
                         object.substr(value, end - value));
    at = next_part(object, end);
  }
  return members;
}

std::vector<std::string_view> elements_as_written(std::string_view list) {
  std::vector<std::string_view> elements;
  for (std::size_t at = first_part(list); at < list.size() && list[at] != ']';) {
    const std::size_t end = end_of_value(list, at);
    elements.push_back(list.substr(at, end - at));
    at = next_part(list, end);
  }
  return elements;
}

bool same_value(std::string_view a, std::string_view b) {
  if (a == b) {
    return true;
  }
  // The text of a record is bounded where it is read, so this work is, too.
  constexpr std::size_t bytes = std::size_t{1} << 30;
  jinja::Budget budget({.steps = std::int64_t{1} << 40, .memory = bytes});
  return jinja::equal(jinja::from_json(a, budget), jinja::from_json(b, budget), budget);
}

}  // namespace tessera::data
