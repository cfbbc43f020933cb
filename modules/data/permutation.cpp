module;
#include <bit>
module tessera.data;

import tessera.base;

namespace tessera::data {

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch)
    : size_(static_cast<std::uint64_t>(size)) {
  const int bits = std::bit_width(size_ > 1 ? size_ - 1 : 1);
  half_bits_ = (bits + 1) / 2;
  std::uint64_t key = hash_combine(hash_combine(0x7465737365726121ULL, seed), epoch);
  for (std::uint64_t& round : keys_) {
    key = hash_combine(key, 1);
    round = key;
  }
}

std::int64_t Permutation::operator[](std::int64_t index) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & mask;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t mixed = left ^ (hash_combine(key, right) & mask);
      left = right;
      right = mixed;
    }
    value = left << half_bits_ | right;
  } while (value >= size_);  // cycle walking: back into the range
  return static_cast<std::int64_t>(value);
}

std::int64_t Permutation::index_of(std::int64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto index = static_cast<std::uint64_t>(value);
  do {
    std::uint64_t left = index >> half_bits_;
    std::uint64_t right = index & mask;
    for (int round = rounds - 1; round >= 0; --round) {
      const std::uint64_t before = left;
      left = right ^ (hash_combine(keys_[round], before) & mask);
      right = before;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);  // the walk backwards
  return static_cast<std::int64_t>(index);
}

}  // namespace tessera::data
