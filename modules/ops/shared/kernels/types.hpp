#pragma once
// Element types of the kernels that take untyped pointers, and the type each one computes in.

#include <cstddef>
#include <cstdint>
#include <tessera/half.hpp>
#include <type_traits>

namespace tessera::kernels {

/// A bool element is one byte holding 0 or 1.
enum class DType : std::uint8_t { f32, f64, bf16, f16, i64, i32, u8, boolean };

constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
    case DType::boolean:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) { return dtype <= DType::f16; }

/// The type that an element type computes in: double for double, float for the other three.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Names an element type.
template <class T>
struct Tag {
  using Type = T;
};

/// Calls body(Tag<T>{}) for the C++ type of dtype.
template <class Body>
void with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::f32:
      return body(Tag<float>{});
    case DType::f64:
      return body(Tag<double>{});
    case DType::bf16:
      return body(Tag<BFloat16>{});
    case DType::f16:
      return body(Tag<Half>{});
    case DType::i64:
      return body(Tag<std::int64_t>{});
    case DType::i32:
      return body(Tag<std::int32_t>{});
    case DType::u8:
      return body(Tag<std::uint8_t>{});
    case DType::boolean:
      return body(Tag<bool>{});
  }
}

template <class T>
inline constexpr bool kIsFloating = !std::is_integral_v<T>;

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
