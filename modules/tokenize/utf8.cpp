#include "utf8.hpp"

#include <utf8proc.h>

#include <cstdint>
#include <cstring>

namespace tessera::tokenize {
namespace {

unsigned char byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

/// The bytes of the character at `at`, or, negative, how many bytes are the beginning of one.
int character_bytes(std::string_view text, std::size_t at) {
  const unsigned char first = byte_at(text, at);
  if (first < 0x80) {
    return 1;
  }
  if (first < 0xC2 || first > 0xF4) {
    return -1;
  }
  const int bytes = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The second byte excludes overlong forms, surrogates and what is above U+10FFFF.
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  switch (first) {
    case 0xE0:
      low = 0xA0;
      break;
    case 0xED:
      high = 0x9F;
      break;
    case 0xF0:
      low = 0x90;
      break;
    case 0xF4:
      high = 0x8F;
      break;
    default:
      break;
  }
  for (int i = 1; i < bytes; ++i) {
    if (at + static_cast<std::size_t>(i) >= text.size()) {
      return -i;
    }
    const unsigned char next = byte_at(text, at + static_cast<std::size_t>(i));
    if (next < low || next > high) {
      return -i;
    }
    low = 0x80;
    high = 0xBF;
  }
  return bytes;
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

std::size_t valid_bytes(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    while (at + 8 <= text.size()) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + at, 8);
      if ((word & 0x8080808080808080U) != 0) {
        break;
      }
      at += 8;
    }
    if (at == text.size()) {
      break;
    }
    const int bytes = character_bytes(text, at);
    if (bytes < 0) {
      return at;
    }
    at += static_cast<std::size_t>(bytes);
  }
  return at;
}

std::size_t broken_bytes(std::string_view text) {
  return static_cast<std::size_t>(-character_bytes(text, 0));
}

std::string repaired(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t valid = valid_bytes(text);
    out += text.substr(0, valid);
    text.remove_prefix(valid);
    if (!text.empty()) {
      out += replacement_character;
      text.remove_prefix(broken_bytes(text));
    }
  }
  return out;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) {
    return c == ' ' || (c >= 9 && c <= 13);
  }
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) {
    return c >= '0' && c <= '9';
  }
  const auto of = category(c);
  return of >= UTF8PROC_CATEGORY_ND && of <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
           (c >= 123 && c <= 126);
  }
  const auto of = category(c);
  return of >= UTF8PROC_CATEGORY_PC && of <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t c) {
  const auto of = category(c);
  return of >= UTF8PROC_CATEGORY_MN && of <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t c) { return category(c) == UTF8PROC_CATEGORY_MN; }

bool is_other(char32_t c) {
  const auto of = category(c);
  return of == UTF8PROC_CATEGORY_CC || of == UTF8PROC_CATEGORY_CF || of == UTF8PROC_CATEGORY_CO;
}

bool is_word(char32_t c) {
  if (c < 0x80) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
  const auto of = category(c);
  return (of >= UTF8PROC_CATEGORY_LU && of <= UTF8PROC_CATEGORY_NL) || of == UTF8PROC_CATEGORY_PC ||
         c == 0x200C || c == 0x200D ||
         // Letters in circles and squares, which are Alphabetic
         (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

std::u32string_view lower_case(char32_t c, char32_t (&space)[2]) {
  if (c == 0x130) {  // the only character whose lower case has two
    space[0] = 'i';
    space[1] = 0x307;
    return {space, 2};
  }
  space[0] = static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
  return {space, 1};
}

std::size_t find_bytes(std::string_view text, std::string_view what, std::size_t from) {
  const std::string_view rest = text.substr(std::min(from, text.size()));
  const void* const found = ::memmem(rest.data(), rest.size(), what.data(), what.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace tessera::tokenize
