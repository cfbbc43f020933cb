#pragma once
// One number in another type, as casts have it: floating types round to nearest even; to integers
// towards 0, NaN gives 0, and what is out of range the nearest value of the range; to bool it is
// whether the number is not 0. For devices, too.

#include <limits>
#include <type_traits>

#include "shared/kernels/types.hpp"

namespace tessera::kernels {

template <class To, class From>
constexpr To to_integer(From value) {
  if (value != value) return To{0};
  // The upper limit may round up to one past the range, which >= then catches.
  if (value >= static_cast<From>(std::numeric_limits<To>::max()))
    return std::numeric_limits<To>::max();
  if (value <= static_cast<From>(std::numeric_limits<To>::lowest()))
    return std::numeric_limits<To>::lowest();
  return static_cast<To>(value);
}

template <class T>
inline constexpr bool kNarrow =
    std::is_same_v<T, BFloat16> || std::is_same_v<T, Half> || kFloat8<T>;

template <class To, class From>
constexpr To convert(From value) {
  if constexpr (kNarrow<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{};
  } else if constexpr (kNarrow<To>) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return to_integer<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace tessera::kernels
