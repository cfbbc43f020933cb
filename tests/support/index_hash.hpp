// Indices of checkpoints that a test changes: with the hash that the change would need.
#pragma once
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace index_hash {

/// The XXH3-128 of the bytes in hexadecimal digits, by xxHash itself.
inline std::string xxh3(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  std::ostringstream text;
  text << std::hex << std::setfill('0') << std::setw(16) << hash.high64 << std::setw(16)
       << hash.low64;
  return text.str();
}

/// An index that begins with the hash of the bytes after it: what somebody writes who changes one
/// on purpose.
inline std::string rehashed(nlohmann::json index) {
  index.erase("hash");
  const std::string rest = index.dump().substr(1);
  return "{\"hash\": \"" + xxh3(rest) + "\",\n" + rest;
}

}  // namespace index_hash
