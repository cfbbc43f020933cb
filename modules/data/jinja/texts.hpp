// Filters and methods of texts.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "jinja/functions.hpp"

namespace tessera::data::jinja {

// Python's str.upper() and its like.
std::string upper_case(std::string_view text, Budget& budget);
std::string lower_case(std::string_view text, Budget& budget);
std::string capitalized(std::string_view text, Budget& budget);
std::string title_case(std::string_view text, Budget& budget);
/// Jinja's filter 'title', whose words begin at other places.
std::string title_of_words(std::string_view text, Budget& budget);
/// str.isupper() and str.islower().
bool has_case(std::string_view text, bool upper, Budget& budget);

/// The text with `to` instead of `from`, at most `count` times (all: negative).
std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     std::int64_t count, Budget& budget);
/// Python's str.splitlines().
std::vector<std::string_view> lines_of(std::string_view text, bool with_ends, Budget& budget);

/// The methods of texts.
const std::vector<Signature>& text_methods();

}  // namespace tessera::data::jinja
