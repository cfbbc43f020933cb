export module tessera.base:dtype;

import :standard;

export namespace tessera {

/// The element types. Names and meaning are the field's: bf16 is the upper half of an f32.
enum class DType : std::uint8_t { f32, f64, bf16, f16, i64, i32, u8, boolean };
inline constexpr int dtype_count = 8;

/// Bytes of one element.
inline constexpr std::size_t size_of(DType dtype) {
  constexpr std::size_t sizes[dtype_count] = {4, 8, 2, 2, 8, 4, 1, 1};
  return sizes[static_cast<int>(dtype)];
}

inline constexpr bool is_floating(DType dtype) {
  return static_cast<int>(dtype) <= static_cast<int>(DType::f16);
}

/// "f32", "f64", "bf16", "f16", "i64", "i32", "u8", "bool".
std::string_view name_of(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

/// The type of a binary operation on two tensors, as torch promotes: floating wins over integral,
/// then the wider; bf16 with f16 gives f32.
DType promote(DType a, DType b);

}  // namespace tessera
