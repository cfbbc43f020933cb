// Reads a plugin's stamp and dependencies from the bytes of an untrusted file. Plain C++: the
// stamping tool is built from it too.
#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera::plugin {

using Digest = std::array<unsigned char, 16>;

/// The place of the stamp's section in a file.
struct StampPlace {
  std::size_t offset = 0;
  std::size_t size = 0;
};

/// Finds the section of gate one in an ELF64 shared library for this machine. Every offset and size
/// is checked against the file. Returns "" or why the file is refused.
std::string locate_stamp(std::span<const std::byte> file, StampPlace& place);

/// Entries that the dynamic loader reads of a library to find the libraries that it needs.
struct DynamicSection {
  std::vector<std::string> needed;     // names, or paths where they have a slash
  std::optional<std::string> runpath;  // folders for what this library needs, separated by ':'
  std::optional<std::string> rpath;    // also for what those need in turn; ignored beside a runpath
};

/// Reads the dynamic section as the loader does. Every offset and size is checked against the file.
/// Returns "" or why the file is refused. A file that is not an ELF64 library for this machine is
/// refused.
std::string read_dynamic_section(std::span<const std::byte> file, DynamicSection& dynamic);

/// XXH3-128 (canonical form) over the file, the digest's own bytes taken as zero.
/// Requires digest_offset + 16 <= file.size().
Digest content_digest(std::span<const std::byte> file, std::size_t digest_offset);

}  // namespace tessera::plugin
