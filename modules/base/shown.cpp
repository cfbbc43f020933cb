#include "tessera/shown.hpp"

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <tessera/utf8.hpp>

namespace tessera {
namespace {

/// Whether a character of UTF-8 begins at this byte.
bool is_begin(std::string_view text, std::size_t at) {
  return at >= text.size() || !is_continuation(text[at]);
}

/// Whether a terminal acts on it instead of showing it, or shows what follows in another order.
bool is_control(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || (code >= 0x202A && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

std::string escaped(std::string_view text, bool lines) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Character next = first_character(text.substr(at));
    const bool layout = next.code == '\n' || next.code == '\t';
    if (next.bytes != 0 && (layout ? lines : !is_control(next.code))) {
      result += text.substr(at, next.bytes);
    } else {
      char code[8];
      const bool byte = next.bytes < 2;
      std::snprintf(code, sizeof(code), byte ? "\\x%02x" : "\\u%04x",
                    byte ? static_cast<unsigned>(static_cast<unsigned char>(text[at]))
                         : static_cast<unsigned>(next.code));
      result += code;
    }
    at += next.bytes == 0 ? 1 : next.bytes;
  }
  return result;
}

}  // namespace

std::string terminal_text(std::string_view text) { return escaped(text, true); }

std::string terminal_line(std::string_view text, std::size_t most) {
  return shown(escaped(text, false), most);
}

std::string shown(std::string_view text, std::size_t most) {
  if (text.size() <= most) {
    return std::string(text);
  }
  // Most of it from the beginning; of a path, the last name says more than its middle.
  std::size_t first = most - most / 3;
  std::size_t last = text.size() - most / 3;
  while (first > 0 && !is_begin(text, first)) {
    --first;
  }
  while (!is_begin(text, last)) {
    ++last;
  }
  return std::string(text.substr(0, first)) + "..." + std::string(text.substr(last)) + " (" +
         std::to_string(text.size()) + " bytes)";
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,@%+=";
  if (!text.empty() && text.find_first_not_of(plain) == std::string_view::npos) {
    return std::string(text);
  }
  std::string word = "'";
  for (const char c : text) {
    word += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return word + "'";
}

}  // namespace tessera
