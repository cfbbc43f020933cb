// UTF-8, and the classes of characters that tokenizers' files name. Plain C++.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <tessera/utf8.hpp>

namespace tessera::tokenize {

/// The character that begins at `at`, of valid UTF-8.
inline Character character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const char32_t first = byte(0);
  if (first < 0x80) {
    return {first, 1};
  }
  if (first < 0xE0) {
    return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  }
  if (first < 0xF0) {
    return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  }
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

/// Where the character that ends before `end` begins, of valid UTF-8; `end` is not 0.
inline std::size_t character_before(std::string_view text, std::size_t end) {
  do {
    --end;
  } while (end > 0 && is_continuation(text[end]));
  return end;
}

/// How many bytes at the beginning are valid UTF-8.
std::size_t valid_bytes(std::string_view text);

/// How many bytes of a text that is not valid at its beginning stand for one U+FFFD: the longest
/// beginning of a character (the Unicode standard, section 3.9, "maximal subpart"), at least 1.
std::size_t broken_bytes(std::string_view text);

inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

/// The text with U+FFFD in the place of what is not valid.
std::string repaired(std::string_view text);

// As Unicode's properties and general categories define them.
bool is_white_space(char32_t c);
bool is_numeric(char32_t c);      // N
bool is_punctuation(char32_t c);  // P, and every mark of ASCII
bool is_mark(char32_t c);         // M
bool is_nonspacing_mark(char32_t c);
bool is_other(char32_t c);  // Cc, Cf, Co
bool is_word(char32_t c);   // Alphabetic, M, Nd, Pc and the two joiners: \w of Unicode's UTS 18
/// The lower case, one or two characters.
std::u32string_view lower_case(char32_t c, char32_t (&space)[2]);

/// Where `what`, which is not empty, is at or after `from`, or npos. The time is proportional to
/// the text, which std::string's own search does not promise.
std::size_t find_bytes(std::string_view text, std::string_view what, std::size_t from = 0);

}  // namespace tessera::tokenize
