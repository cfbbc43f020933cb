#pragma once
// The order of elements as the order of integers.

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "shared/kernels/types.hpp"

namespace tessera::kernels {

/// An element as a number whose order is the element's: NaN comes last, -0 is 0. One type to sort
/// by, whatever the elements are.
template <class T>
inline std::uint64_t key_of(T element) {
  constexpr std::uint64_t sign = std::uint64_t{1} << 63;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(element)) ^ sign;
  } else {
    const auto value = static_cast<double>(plain(element)) + 0.0;
    if (value != value) {
      return std::numeric_limits<std::uint64_t>::max();
    }
    const auto bits = std::bit_cast<std::uint64_t>(value);
    return (bits & sign) != 0 ? ~bits : bits | sign;
  }
}

struct Entry {
  std::uint64_t key;
  std::int64_t index;
  bool operator<(const Entry& other) const {
    return key != other.key ? key < other.key : index < other.index;
  }
};

}  // namespace tessera::kernels
