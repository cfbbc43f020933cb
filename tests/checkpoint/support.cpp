#include "support.hpp"

#include <cstdint>
#include <cstring>

namespace checkpoint_test {

std::string file_of(const std::string& header, std::size_t data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + std::string(data, '\0');
}

}  // namespace checkpoint_test
