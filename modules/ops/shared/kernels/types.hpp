#pragma once
// Element types as kernels need them: the type that each one computes in.

#include <cstdint>
#include <tessera/half.hpp>
#include <tessera/visit_dtype.hpp>
#include <type_traits>

namespace tessera::kernels {

/// The type that an element type computes in: double for double, float for the other three.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// The type in which elements are added up: float for 16 bits, so that a sum is rounded once; the
/// others add in their own.
template <class T>
using Summed = std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>, float, T>;

template <class T>
inline constexpr bool kIsFloating = !std::is_integral_v<T>;

template <class T>
inline constexpr bool kFloat8 = std::is_same_v<T, Float8E4M3> || std::is_same_v<T, Float8E5M2>;

/// An element as something to compare: itself, or a float for 16 bits.
template <class T>
[[gnu::always_inline]] inline auto plain(T value) {
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>) {
    return static_cast<float>(value);
  } else {
    return value;
  }
}

}  // namespace tessera::kernels
