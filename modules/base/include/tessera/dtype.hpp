#pragma once
// The element types, for modules and for plain sources (kernels) alike.

#include <cstddef>
#include <cstdint>

namespace tessera {

/// The element types. Names and meaning are the field's: bf16 is the upper half of an f32. A bool
/// element is one byte that contains 0 or 1.
enum class DType : std::uint8_t { f32, f64, bf16, f16, i64, i32, u8, boolean };
inline constexpr int dtype_count = 8;

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  constexpr std::size_t sizes[dtype_count] = {4, 8, 2, 2, 8, 4, 1, 1};
  return sizes[static_cast<int>(dtype)];
}

constexpr bool is_floating(DType dtype) {
  return static_cast<int>(dtype) <= static_cast<int>(DType::f16);
}

}  // namespace tessera
