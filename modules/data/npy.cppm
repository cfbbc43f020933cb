export module tessera.data:npy;

import tessera.base;

// NumPy's .npy files of token ids.

export namespace tessera::data {

/// Types of token ids in a file.
enum class TokenType : std::uint8_t { u8, u16, u32, i32 };

/// Bytes of one token.
std::size_t size_of(TokenType type);

/// Contents of an npy file, by its header.
struct NpyLayout {
  TokenType type = TokenType::u16;
  std::size_t offset = 0;  // of the first token, in bytes
  std::int64_t count = 0;
};

/// As much of a file's start as a header may take: format 1 allows 64 KiB, and NumPy writes 128
/// bytes for one dimension.
inline constexpr std::size_t npy_header_limit = 1 << 17;

/// Reads the header of a file of `size` bytes (format 1 to 3: numpy.lib.format) from the bytes at
/// its start, `npy_header_limit` of them or all. Only one dimension of little-endian u16, u32 or
/// i32 is accepted, and the data must fill the file exactly. Throws Error (input) that begins with
/// `name` for everything else.
NpyLayout read_npy_header(std::span<const std::byte> start, std::size_t size,
                          const std::string& name);

}  // namespace tessera::data
