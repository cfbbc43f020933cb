#include "tessera/shown.hpp"

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {
namespace {

/// Whether a character of UTF-8 begins at this byte.
bool is_begin(std::string_view text, std::size_t at) {
  return at >= text.size() || (static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80U;
}

}  // namespace

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
