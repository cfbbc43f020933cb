// Texts in UTF-8.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
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

/// A character with its bytes in UTF-8; 0 bytes: there is none at the beginning of the text.
struct Character {
  char32_t code = 0;
  std::size_t bytes = 0;
};

/// The character at the beginning of a text, which is not empty. What is longer than it has to be,
/// and halves of characters (surrogates), are none, as in the Unicode standard (table 3-7).
constexpr Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t bytes = byte(0) < 0x80U   ? 1
                            : byte(0) < 0xC2U ? 0
                            : byte(0) < 0xE0U ? 2
                            : byte(0) < 0xF0U ? 3
                            : byte(0) < 0xF5U ? 4
                                              : 0;
  if (bytes > text.size()) {
    return {};
  }
  char32_t code = bytes < 2 ? byte(0) : byte(0) & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if (!is_continuation(text[i])) {
      return {};
    }
    code = code << 6U | (byte(i) & 0x3FU);
  }
  constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool valid = code >= least[bytes] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
  return valid ? Character{.code = code, .bytes = bytes} : Character{};
}

/// Appends a character of at most 0x10FFFF.
constexpr void append_utf8(std::string& text, char32_t code) {
  const auto add = [&](char32_t mark, unsigned shift) {
    text += static_cast<char>(mark | (code >> shift & (mark == 0x80 ? 0x3FU : 0x7FU)));
  };
  if (code < 0x80) {
    add(0, 0);
    return;
  }
  const unsigned further = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  add(further == 1 ? 0xC0 : further == 2 ? 0xE0 : 0xF0, 6 * further);
  for (unsigned left = further; left > 0; --left) {
    add(0x80, 6 * (left - 1));
  }
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
