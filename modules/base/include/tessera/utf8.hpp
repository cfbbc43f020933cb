// Texts in UTF-8.
#pragma once
#include <cstdint>
#include <string_view>

namespace tessera {

/// Whether a byte is not the first one of a character.
constexpr bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80;
}

/// The number of characters of a text.
constexpr std::int64_t count_characters(std::string_view text) {
  std::int64_t count = 0;
  for (const char byte : text) {
    count += is_continuation(byte) ? 0 : 1;
  }
  return count;
}

/// The text without spaces, tabs and ends of lines around it.
constexpr std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const auto begin = text.find_first_not_of(blanks);
  return begin == std::string_view::npos
             ? std::string_view()
             : text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
}

}  // namespace tessera
