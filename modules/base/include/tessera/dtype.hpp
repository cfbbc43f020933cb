#pragma once
// The element types, for modules and for plain sources (kernels) alike.

#include <cstddef>
#include <cstdint>

namespace tessera {

/// The element types. Names and meaning are the field's: bf16 is the upper half of an f32. A bool
/// element is one byte that contains 0 or 1. f8e4m3 is the variant without infinities (torch's
/// float8_e4m3fn). The numbers are stored and sent: a new type comes last.
enum class DType : std::uint8_t { f32, f64, bf16, f16, i64, i32, u8, boolean, i8, f8e4m3, f8e5m2 };
inline constexpr int dtype_count = 11;

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  constexpr std::size_t sizes[dtype_count] = {4, 8, 2, 2, 8, 4, 1, 1, 1, 1, 1};
  return sizes[static_cast<int>(dtype)];
}

constexpr bool is_floating(DType dtype) {
  return static_cast<int>(dtype) <= static_cast<int>(DType::f16) || dtype == DType::f8e4m3 ||
         dtype == DType::f8e5m2;
}

/// Whether elements of the type are only stored, moved and converted: i8, f8e4m3, f8e5m2. Only
/// operators that declare Op::moves_elements take them.
constexpr bool is_stored_only(DType dtype) {
  return static_cast<int>(dtype) > static_cast<int>(DType::boolean);
}

}  // namespace tessera
