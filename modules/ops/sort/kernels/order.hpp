#pragma once
// Elements with their places, in the order of their keys.

#include <cstdint>

#include "shared/kernels/types.hpp"
#include "sort/functions/order.hpp"

namespace tessera::kernels {

/// The key of an element, as wide as the element, at least 32 bits.
template <class T>
[[gnu::always_inline]] inline auto key_of(T element) {
  return functions::key_of(plain(element));
}
template <class T>
using Key = functions::Key<T>;

/// A key and the position of its element: ordered by key, then by position.
template <class K>
struct Entry {
  K key_bits;
  std::uint64_t position;

  static Entry of(K key, std::int64_t index) { return {key, static_cast<std::uint64_t>(index)}; }
  K key() const { return key_bits; }
  std::int64_t index() const { return static_cast<std::int64_t>(position); }
  friend bool operator<(const Entry& a, const Entry& b) {
    return a.key_bits != b.key_bits ? a.key_bits < b.key_bits : a.position < b.position;
  }
};

/// Both in one word, for fewer than 2^32 elements.
template <>
struct Entry<std::uint32_t> {
  std::uint64_t word;

  [[gnu::always_inline]] static Entry of(std::uint32_t key, std::int64_t index) {
    return {std::uint64_t{key} << 32 | static_cast<std::uint64_t>(index)};
  }
  std::uint32_t key() const { return static_cast<std::uint32_t>(word >> 32); }
  std::int64_t index() const { return static_cast<std::int64_t>(word & 0xffffffffU); }
  friend bool operator<(Entry a, Entry b) { return a.word < b.word; }
};

}  // namespace tessera::kernels
