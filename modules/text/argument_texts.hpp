// Arguments of calls, as models write them.
#pragma once
#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::text {

inline constexpr std::string_view blanks = " \t\r\n";

inline void skip_blanks(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
}

/// Whether a text begins with another one; none: it ends before that is known.
inline std::optional<bool> begins(std::string_view text, std::string_view with) {
  const std::size_t length = std::min(text.size(), with.size());
  if (text.substr(0, length) != with.substr(0, length)) {
    return false;
  }
  return text.size() < with.size() ? std::nullopt : std::optional(true);
}

/// Whether a schema takes texts: then what is written between marks is one.
inline bool takes_text(const nlohmann::json& schema) {
  const auto type = schema.is_object() ? schema.find("type") : schema.end();
  if (!schema.is_object() || type == schema.end()) {
    return false;
  }
  return *type == "string" ||
         (type->is_array() && std::ranges::find(*type, nlohmann::json("string")) != type->end());
}

/// A JSON object or list from a model; none: it is not JSON.
std::optional<nlohmann::ordered_json> read_json(std::string_view text);

/// The length of the object or list at the beginning of a text; none: it does not end. `quote`: the
/// mark around texts; empty: JSON.
std::optional<std::size_t> value_length(std::string_view text, std::string_view quote = {});

/// A value with the mark around texts, and names of members without one, as JSON; none: it is not
/// such a value.
std::optional<std::string> quoted_to_json(std::string_view text, std::string_view quote);

/// How many bytes at the end of a text may be the beginning of a mark.
std::size_t begun_at_end(std::string_view text, std::string_view mark);

}  // namespace tessera::text
