// Finding a plugin's stamp in the bytes of a file that nobody trusts. Plain C++: the stamping tool
// is built from it too.
#pragma once
#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace tessera::plugin {

using Digest = std::array<unsigned char, 16>;

/// Where the stamp's section lies in a file.
struct StampPlace {
  std::size_t offset = 0;
  std::size_t size = 0;
};

/// Finds the section of gate one in an ELF64 shared library for this machine. Every offset and size
/// is checked against the file. Returns "" or why the file is refused.
std::string locate_stamp(std::span<const std::byte> file, StampPlace& place);

/// XXH3-128 (canonical form) over the file, the digest's own bytes taken as zero.
/// Requires digest_offset + 16 <= file.size().
Digest content_digest(std::span<const std::byte> file, std::size_t digest_offset);

}  // namespace tessera::plugin
