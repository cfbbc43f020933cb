// The checksums of a zip archive whose bytes a test has changed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera::testing {

inline std::uint64_t zip_number(const std::string& bytes, std::size_t at, int count) {
  std::uint64_t value = 0;
  for (int i = 0; i < count && at + static_cast<std::size_t>(i) < bytes.size(); ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)])}
             << (8 * i);
  }
  return value;
}

/// Gives each entry of the directory the checksum that its bytes have now. Archives with 64-bit
/// sizes, and what is damaged, stay as they are from there on.
inline void seal_zip(std::string& bytes) {
  const std::size_t end = bytes.rfind("PK\x05\x06");
  if (end == std::string::npos) {
    return;
  }
  std::size_t budget = 4 * bytes.size();  // entries of a fuzzed archive may overlap
  std::size_t at = zip_number(bytes, end + 16, 4);
  for (auto left = zip_number(bytes, end + 10, 2); left > 0 && at + 46 <= bytes.size(); --left) {
    const std::size_t header = zip_number(bytes, at + 42, 4);
    const std::size_t size = zip_number(bytes, at + 20, 4);
    const std::size_t data =
        header + 30 + zip_number(bytes, header + 26, 2) + zip_number(bytes, header + 28, 2);
    if (data > bytes.size() || size > bytes.size() - data || size > budget) {
      return;
    }
    budget -= size;
    std::uint32_t sum = ~0U;
    for (std::size_t i = data; i < data + size; ++i) {
      sum ^= static_cast<unsigned char>(bytes[i]);
      for (int bit = 0; bit < 8; ++bit) {
        sum = (sum & 1U) != 0 ? 0xedb88320U ^ (sum >> 1U) : sum >> 1U;
      }
    }
    for (int i = 0; i < 4; ++i) {
      bytes[at + 16 + static_cast<std::size_t>(i)] = static_cast<char>(~sum >> (8 * i));
    }
    at += 46 + zip_number(bytes, at + 28, 2) + zip_number(bytes, at + 30, 2) +
          zip_number(bytes, at + 32, 2);
  }
}

}  // namespace tessera::testing
