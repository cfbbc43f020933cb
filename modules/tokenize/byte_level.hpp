// GPT-2's alphabet: a visible character for each byte, so that tokens of bytes are texts.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace tessera::tokenize {

/// The character for a byte, in UTF-8.
std::string_view byte_level_text(unsigned char byte);

/// The bytes that a token stands for; nothing where one of its characters is not of the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace tessera::tokenize
