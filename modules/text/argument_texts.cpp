#include "argument_texts.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/utf8.hpp>

import tessera.base;

namespace tessera::text {
namespace {

std::size_t length_in_json(std::string_view text) {
  std::size_t depth = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      i += c == '\\' ? 1 : 0;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return 0;
}

std::size_t length_between_marks(std::string_view text, std::string_view quote) {
  std::size_t depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with(quote)) {
      const std::size_t end = text.find(quote, i + quote.size());
      if (end == std::string_view::npos) {
        return 0;
      }
      i = end + quote.size() - 1;
    } else if (text[i] == '{' || text[i] == '[') {
      ++depth;
    } else if ((text[i] == '}' || text[i] == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return 0;
}

}  // namespace

std::optional<nlohmann::ordered_json> read_json(std::string_view text) {
  const std::string wrapped = "{\"value\":" + std::string(text) + "}";
  const ParsedJson parsed = parse_json_object(wrapped);
  if (!parsed.problem.empty() || parsed.value.size() != 1) {  // "1, \"name\": 2" is no value
    return std::nullopt;
  }
  try {
    return parse_ordered_json(wrapped)["value"];
  } catch (const Error&) {
    return std::nullopt;  // a number that would change
  }
}

std::optional<std::size_t> value_length(std::string_view text, std::string_view quote) {
  const std::size_t length =
      quote.empty() ? length_in_json(text) : length_between_marks(text, quote);
  return length == 0 ? std::nullopt : std::optional(length);
}

std::optional<std::string> quoted_to_json(std::string_view text, std::string_view quote) {
  constexpr std::string_view between = "{}[],:";
  std::string json;
  while (!text.empty()) {
    if (text.starts_with(quote)) {
      text.remove_prefix(quote.size());
      const std::size_t end = text.find(quote);
      if (end == std::string_view::npos) {
        return std::nullopt;
      }
      json += json_text(nlohmann::json(std::string(text.substr(0, end))));
      text.remove_prefix(end + quote.size());
    } else if (between.find(text[0]) != std::string_view::npos) {
      json += text[0];
      text.remove_prefix(1);
    } else {
      const std::size_t end =
          std::min({text.find_first_of(between), text.find(quote), text.size()});
      const std::string word(without_blanks(text.substr(0, end)));
      text.remove_prefix(end);
      if (word == "None") {
        json += "null";  // as templates write it
      } else if (!word.empty()) {
        json += text.starts_with(':') ? json_text(nlohmann::json(word)) : word;
      }
    }
  }
  return read_json(json) ? std::optional(json) : std::nullopt;
}

std::size_t begun_at_end(std::string_view text, std::string_view mark) {
  for (std::size_t length = std::min(text.size(), mark.size()); length > 0; --length) {
    if (text.ends_with(mark.substr(0, length))) {
      return length;
    }
  }
  return 0;
}

}  // namespace tessera::text
