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

/// A value is infinite or NaN when all bits of its exponent are set.
template <class Bits>
bool no_full_exponent(std::span<const std::byte> bytes, Bits exponent) {
  bool finite = true;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Bits)) {
    Bits value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    finite &= static_cast<Bits>(value & exponent) != exponent;
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
  switch (dtype) {
    case DType::f64:
      return no_full_exponent<std::uint64_t>(bytes, 0x7ff0'0000'0000'0000U);
    case DType::f32:
      return no_full_exponent<std::uint32_t>(bytes, 0x7f80'0000U);
    case DType::bf16:
      return no_full_exponent<std::uint16_t>(bytes, 0x7f80U);
    case DType::f16:
      return no_full_exponent<std::uint16_t>(bytes, 0x7c00U);
    case DType::f8e5m2:
      return no_full_exponent<std::uint8_t>(bytes, 0x7cU);
    case DType::f8e4m3:  // no infinities; NaN is all ones
      return no_full_exponent<std::uint8_t>(bytes, 0x7fU);
    default:
      return true;
  }
}

}  // namespace tessera::checkpoint_detail
