// A file's bytes in a hash.
#pragma once
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <tessera/content_hash.hpp>
#include <vector>

namespace tessera::runs {

/// Adds all that is left of the file. Returns how many bytes that was.
inline std::int64_t add_file(ContentHash& hash, std::ifstream& file) {
  std::int64_t bytes = 0;
  std::vector<char> piece(std::size_t{1} << 20);
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hash.add(std::as_bytes(std::span(piece).first(static_cast<std::size_t>(file.gcount()))));
    bytes += file.gcount();
  }
  return bytes;
}

}  // namespace tessera::runs
