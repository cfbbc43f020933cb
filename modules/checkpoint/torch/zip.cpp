// Zip archives of entries that are not compressed, with sizes of up to 64 bits in those that are
// read.
module;
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import :pickle;

namespace tessera::checkpoint_detail {
namespace {

constexpr std::uint32_t all_ones = 0xffff'ffff;  // a size that an extra field has in 64 bits

/// Little-endian numbers of an archive; Error (input) beyond its end.
class Archive {
 public:
  Archive(std::span<const std::byte> bytes, const std::string& where)
      : bytes_(bytes), where_(where) {}

  [[noreturn]] void wrong(const std::string& what) const {
    fail_input({.thing = where_,
                .wrong = fmt::format("a stored value is not an archive of PyTorch: {}", what),
                .advice = "use another checkpoint"});
  }
  std::span<const std::byte> part(std::uint64_t at, std::uint64_t count) const {
    if (at > bytes_.size() || count > bytes_.size() - at) {
      wrong("it is cut");
    }
    return bytes_.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count));
  }
  std::uint64_t number(std::uint64_t at, std::size_t count) const {
    const auto bytes = part(at, count);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    }
    return value;
  }
  std::uint64_t size() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  const std::string& where_;
};

/// Where the directory begins, and how many entries it has.
std::pair<std::uint64_t, std::uint64_t> directory_of(const Archive& archive) {
  for (std::uint64_t back = 22; back <= archive.size() && back < 22 + 65536; ++back) {
    const std::uint64_t end = archive.size() - back;
    if (archive.number(end, 4) != 0x06054b50) {
      continue;
    }
    const std::uint64_t begin = archive.number(end + 16, 4);
    if (begin != all_ones || end < 20) {
      return {begin, archive.number(end + 10, 2)};
    }
    const std::uint64_t wide = archive.number(end - 20 + 8, 8);
    if (archive.number(wide, 4) != 0x06064b50) {
      archive.wrong("its directory is damaged");
    }
    return {archive.number(wide + 48, 8), archive.number(wide + 32, 8)};
  }
  archive.wrong("it has no directory");
}

/// The 64-bit values of an entry of the directory.
std::uint64_t wide_value(const Archive& archive, std::uint64_t value, std::uint64_t extra,
                         std::uint64_t extra_end, std::uint64_t& used) {
  if (value != all_ones) {
    return value;
  }
  for (std::uint64_t at = extra; at + 4 <= extra_end; at += 4 + archive.number(at + 2, 2)) {
    if (archive.number(at, 2) == 1) {
      used += 8;
      return archive.number(at + 4 + used - 8, 8);
    }
  }
  archive.wrong("a size is missing");
}

/// Eight bytes at a time: table k has the sums of a byte that k others follow.
std::uint32_t crc32(std::span<const std::byte> bytes) {
  static const std::array<std::array<std::uint32_t, 256>, 8> tables = [] {
    std::array<std::array<std::uint32_t, 256>, 8> made{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) {
        value = (value & 1U) != 0 ? 0xedb8'8320U ^ (value >> 1U) : value >> 1U;
      }
      made[0][i] = value;
    }
    for (std::uint32_t i = 0; i < 256; ++i) {
      for (std::size_t k = 1; k < made.size(); ++k) {
        made[k][i] = made[0][made[k - 1][i] & 0xffU] ^ (made[k - 1][i] >> 8U);
      }
    }
    return made;
  }();
  const auto byte = [&bytes](std::size_t i) { return std::to_integer<std::uint32_t>(bytes[i]); };
  std::uint32_t value = ~0U;
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint32_t next = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      const std::uint32_t before = k < 4 ? (value >> (8 * k)) & 0xffU : 0;
      next ^= tables[7 - k][byte(at + k) ^ before];
    }
    value = next;
  }
  for (; at < bytes.size(); ++at) {
    value = tables[0][(value ^ byte(at)) & 0xffU] ^ (value >> 8U);
  }
  return ~value;
}

void add(std::string& text, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) {
    text += static_cast<char>(value >> (8 * i));
  }
}

}  // namespace

bool ZipEntry::is_intact() const { return crc32(bytes) == checksum; }

std::map<std::string, ZipEntry> zip_entries(std::span<const std::byte> bytes,
                                            const std::string& where) {
  const Archive archive(bytes, where);
  const auto [begin, count] = directory_of(archive);
  std::map<std::string, ZipEntry> entries;
  std::uint64_t at = begin;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (archive.number(at, 4) != 0x02014b50) {
      archive.wrong("its directory is damaged");
    }
    const std::uint64_t name_bytes = archive.number(at + 28, 2);
    const std::uint64_t extra = at + 46 + name_bytes;
    const std::uint64_t extra_end = extra + archive.number(at + 30, 2);
    const auto name = archive.part(at + 46, name_bytes);
    std::uint64_t used = 0;
    const std::uint64_t size =
        wide_value(archive, archive.number(at + 24, 4), extra, extra_end, used);
    const std::uint64_t stored =
        wide_value(archive, archive.number(at + 20, 4), extra, extra_end, used);
    const std::uint64_t header =
        wide_value(archive, archive.number(at + 42, 4), extra, extra_end, used);
    if (archive.number(at + 10, 2) != 0 || size != stored) {
      archive.wrong("it is compressed");
    }
    if (archive.number(header, 4) != 0x04034b50) {
      archive.wrong("an entry is damaged");
    }
    const std::uint64_t data =
        header + 30 + archive.number(header + 26, 2) + archive.number(header + 28, 2);
    const auto [entry, is_new] = entries.emplace(
        std::string(reinterpret_cast<const char*>(name.data()), name.size()),
        ZipEntry{archive.part(data, size), static_cast<std::uint32_t>(archive.number(at + 16, 4))});
    if (!is_new) {
      archive.wrong(fmt::format("it has two entries '{}'", shown(entry->first, 80)));
    }
    at = extra_end + archive.number(at + 32, 2);
  }
  return entries;
}

std::string zip_archive(
    const std::vector<std::pair<std::string, std::span<const std::byte>>>& entries,
    const std::string& where) {
  std::string archive;
  std::string directory;
  for (const auto& [name, bytes] : entries) {
    if (archive.size() + bytes.size() + 1000 > std::numeric_limits<std::uint32_t>::max()) {
      fail_input({.thing = where, .wrong = "a stored value has 4 GiB or more"});
    }
    std::string common;  // of both headers: version, flags, stored, time and date, sizes, lengths
    add(common, 20, 2);
    add(common, 0, 4);
    add(common, 0x0021'0000, 4);  // 1 January 1980
    add(common, crc32(bytes), 4);
    add(common, bytes.size(), 4);
    add(common, bytes.size(), 4);
    add(common, name.size(), 2);
    add(common, 0, 2);
    add(directory, 0x02014b50, 4);
    add(directory, 20, 2);
    directory += common;
    add(directory, 0, 8);  // comment, disk, attributes
    add(directory, 0, 2);
    add(directory, archive.size(), 4);
    directory += name;
    add(archive, 0x04034b50, 4);
    archive += common + name;
    archive.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  const std::size_t begin = archive.size();
  archive += directory;
  add(archive, 0x06054b50, 4);
  add(archive, 0, 4);
  add(archive, entries.size(), 2);
  add(archive, entries.size(), 2);
  add(archive, directory.size(), 4);
  add(archive, begin, 4);
  add(archive, 0, 2);
  return archive;
}

}  // namespace tessera::checkpoint_detail
