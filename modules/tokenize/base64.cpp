#include "base64.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <tessera/shown.hpp>

import tessera.base;

namespace tessera::tokenize {
namespace {

constexpr std::array<std::int8_t, 256> values = [] {
  std::array<std::int8_t, 256> table{};
  table.fill(-1);
  constexpr std::string_view alphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < alphabet.size(); ++i) {
    table[static_cast<unsigned char>(alphabet[i])] = static_cast<std::int8_t>(i);
  }
  return table;
}();

}  // namespace

std::string from_base64(std::string_view text, const std::string& where) {
  std::string_view digits = text;
  for (int i = 0; i < 2 && digits.ends_with('='); ++i) {
    digits.remove_suffix(1);
  }
  std::string bytes;
  bytes.reserve(digits.size() * 3 / 4);
  std::uint32_t bits = 0;
  int held = 0;
  bool valid = text.size() % 4 == 0;
  for (const char c : digits) {
    const int value = values[static_cast<unsigned char>(c)];
    valid = valid && value >= 0;
    bits = bits << 6 | static_cast<std::uint32_t>(value & 63);
    held += 6;
    if (held >= 8) {
      held -= 8;
      bytes += static_cast<char>(bits >> held & 0xFF);
    }
  }
  if (!valid) {
    fail_input({.thing = where, .wrong = fmt::format("'{}' is not base64", shown(text, 40))});
  }
  return bytes;
}

}  // namespace tessera::tokenize
