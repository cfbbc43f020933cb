#pragma once
// The order of numbers as the order of unsigned integers, for any compiler.

#include <cstdint>
#include <type_traits>

namespace tessera::functions {

/// As wide as the number, at least 32 bits.
template <class T>
using Key = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

/// A number (float, double, an integer or bool) as another one whose order is its own: NaN is last,
/// -0 equals 0.
template <class T>
[[gnu::always_inline]] constexpr Key<T> key_of(T number) {
  using K = Key<T>;
  constexpr K sign = K{1} << (8 * sizeof(K) - 1);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<K>(number) ^ (std::is_signed_v<T> ? sign : K{0});
  } else {
    const T value = number + 0;  // -0 + 0 is 0
    const K bits = __builtin_bit_cast(K, value);
    const K ordered = bits ^ (((bits & sign) != 0 ? ~K{0} : K{0}) | sign);
    return value == value ? ordered : ~K{0};
  }
}

}  // namespace tessera::functions
