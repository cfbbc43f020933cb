// The hashes of stored bytes: made while saving, compared while loading.
module tessera.checkpoint:chunks;

import tessera.base;

namespace tessera::checkpoint_detail {

/// The bytes that one hash covers: what a load reads of a part is rounded out to such chunks, and
/// a table has 32 digits for each.
inline constexpr std::size_t chunk_bytes = std::size_t{1} << 20;

/// How many chunks so many bytes have.
constexpr std::size_t chunks_of(std::size_t bytes) {
  return (bytes + chunk_bytes - 1) / chunk_bytes;
}

/// Chunk i of the bytes; the last one may be shorter.
std::span<const std::byte> chunk_at(std::span<const std::byte> bytes, std::size_t i);

/// The hash of each chunk.
std::vector<std::string> hashes_of(std::span<const std::byte> bytes);

/// Whether all values of a floating type are finite; true for the other types.
bool all_finite(std::span<const std::byte> bytes, DType dtype);

}  // namespace tessera::checkpoint_detail
