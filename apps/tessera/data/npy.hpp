// NumPy's .npy files of token ids.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tessera::app {

enum class TokenType : std::uint8_t { u8, u16, u32, i32 };

/// Bytes of one token.
std::size_t size_of(TokenType type);

struct NpyLayout {
  TokenType type = TokenType::u16;
  std::size_t offset = 0;  // of the first token, in bytes
  std::int64_t count = 0;
};

/// Reads the header of a file's bytes (format 1 to 3: numpy.lib.format). Only one dimension of
/// little-endian u16, u32 or i32 is taken, and the data must fill the file exactly. Throws Error
/// (input) that begins with `name` for everything else.
NpyLayout read_npy_header(std::span<const std::byte> file, const std::string& name);

}  // namespace tessera::app
