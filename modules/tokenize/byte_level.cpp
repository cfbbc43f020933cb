#include "byte_level.hpp"

#include <array>
#include <cstdint>

#include "utf8.hpp"

namespace tessera::tokenize {
namespace {

/// Bytes that are visible in Latin-1 are themselves; the others follow from U+0100 on
/// (bytes_to_unicode in GPT-2's encoder.py).
struct Alphabet {
  std::array<std::string, 256> texts;
  std::array<std::int16_t, 512> bytes{};

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 256;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool visible =
          (byte >= 33 && byte <= 126) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t code = visible ? static_cast<char32_t>(byte) : next++;
      append_utf8(texts[byte], code);
      bytes[code] = static_cast<std::int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet the;
  return the;
}

}  // namespace

std::string_view byte_level_text(unsigned char byte) { return alphabet().texts[byte]; }

std::optional<std::string> byte_level_bytes(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const Character c = character_at(token, at);
    at += c.bytes;
    if (c.code >= alphabet().bytes.size() || alphabet().bytes[c.code] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(alphabet().bytes[c.code]);
  }
  return bytes;
}

}  // namespace tessera::tokenize
