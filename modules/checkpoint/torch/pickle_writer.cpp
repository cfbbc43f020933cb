module;
#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
module tessera.checkpoint;

import tessera.base;
import :pickle;

namespace tessera::checkpoint_detail {

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value < 256) {
    bytes_ += 'K';
    bytes_ += static_cast<char>(value);
    return;
  }
  bytes_ += "\x8a\x08";  // eight bytes
  for (int i = 0; i < 8; ++i) {
    bytes_ += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
  }
}

void PickleWriter::real(double value) {
  bytes_ += 'G';
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int i = 7; i >= 0; --i) {
    bytes_ += static_cast<char>(bits >> (8 * i));
  }
}

void PickleWriter::text(std::string_view value) {
  bytes_ += 'X';
  for (int i = 0; i < 4; ++i) {
    bytes_ += static_cast<char>(value.size() >> (8 * i));
  }
  bytes_ += value;
}

std::string PickleWriter::finish() { return bytes_ + '.'; }

void PickleWriter::global(std::string_view name) {
  std::string lines(name);
  std::ranges::replace(lines, ' ', '\n');
  bytes_ += 'c' + lines + '\n';
}

}  // namespace tessera::checkpoint_detail
