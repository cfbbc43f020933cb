module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tessera/content_hash.hpp"
module tessera.checkpoint;

import tessera.base;
import :chunks;

namespace tessera::checkpoint_detail {
namespace {

template <class Bits>
bool are_finite(std::span<const std::byte> bytes, std::uint64_t mask) {
  const auto not_finite = static_cast<Bits>(mask);
  bool finite = true;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Bits)) {
    Bits value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    finite &= static_cast<Bits>(value & not_finite) != not_finite;
  }
  return finite;
}

}  // namespace

std::span<const std::byte> chunk_at(std::span<const std::byte> bytes, std::size_t i) {
  const std::size_t begin = i * chunk_bytes;
  return bytes.subspan(begin, std::min(chunk_bytes, bytes.size() - begin));
}

std::vector<std::string> hashes_of(std::span<const std::byte> bytes) {
  std::vector<std::string> hashes;
  for (std::size_t i = 0; i < chunks_of(bytes.size()); ++i) {
    hashes.push_back(content_hash(chunk_at(bytes, i)));
  }
  return hashes;
}

bool all_finite(std::span<const std::byte> bytes, DType dtype) {
  const std::uint64_t mask = facts_of(dtype).not_finite;
  if (mask == 0) {
    return true;
  }
  switch (size_of(dtype)) {
    case 8:
      return are_finite<std::uint64_t>(bytes, mask);
    case 4:
      return are_finite<std::uint32_t>(bytes, mask);
    case 2:
      return are_finite<std::uint16_t>(bytes, mask);
    default:
      return are_finite<std::uint8_t>(bytes, mask);
  }
}

}  // namespace tessera::checkpoint_detail
