#pragma once
// The order of elements as the order of unsigned integers.

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "shared/kernels/types.hpp"

namespace tessera::kernels {

/// As wide as the element, at least 32 bits.
template <class T>
using Key = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

/// An element as a number whose order is the element's: NaN is last, -0 equals 0.
template <class T>
[[gnu::always_inline]] inline Key<T> key_of(T element) {
  using K = Key<T>;
  constexpr K kSign = K{1} << (8 * sizeof(K) - 1);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<K>(element) ^ (std::is_signed_v<T> ? kSign : K{0});
  } else {
    const auto value = plain(element) + 0;  // -0 + 0 is 0
    const K bits = std::bit_cast<K>(value);
    const K ordered = bits ^ (((bits & kSign) != 0 ? ~K{0} : K{0}) | kSign);
    return value == value ? ordered : std::numeric_limits<K>::max();
  }
}

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
