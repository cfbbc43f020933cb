// Checks of texts from files.
#pragma once
#include <cstddef>
#include <string_view>
#include <tessera/utf8.hpp>

namespace tessera::data {

/// The first byte that is not a part of UTF-8; npos where there is none.
std::size_t invalid_utf8(std::string_view text);

/// Whether there is nothing but spaces, tabs and ends of lines.
constexpr bool is_blank(std::string_view text) { return without_blanks(text).empty(); }

}  // namespace tessera::data
