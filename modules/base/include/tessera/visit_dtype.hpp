#pragma once
// From an element type to its C++ type: the only switch over element types that selects code.

#include <cstdint>
#include <tessera/dtype.hpp>
#include <tessera/float8.hpp>
#include <tessera/half.hpp>
#include <type_traits>

namespace tessera::kernels {

/// A set of element types.
template <class First, class... Rest>
struct Types {
  using first = First;
  template <class T>
  static constexpr bool contains = std::is_same_v<T, First> || (std::is_same_v<T, Rest> || ...);
};
using FloatingTypes = Types<float, double, BFloat16, Half>;
using IndexTypes = Types<std::int64_t, std::int32_t>;
/// The types that operators compute with.
using AllTypes =
    Types<float, double, BFloat16, Half, std::int64_t, std::int32_t, std::uint8_t, bool>;
/// These, and those that are only stored (is_stored_only).
using StoredTypes = Types<float, double, BFloat16, Half, std::int64_t, std::int32_t, std::uint8_t,
                          bool, std::int8_t, Float8E4M3, Float8E5M2>;

/// Calls body(T{}) for the C++ type T of `dtype` if T is in `Set`, else otherwise(). All calls of
/// body return one type; a body that returns a value needs an otherwise() that throws.
template <class Set, class Body, class Otherwise>
inline auto visit(DType dtype, Body&& body, Otherwise&& otherwise) {
  using Result = decltype(body(typename Set::first{}));
  const auto call = [&]<class T>(T zero) -> Result {
    if constexpr (Set::template contains<T>) {
      return body(zero);
    } else {
      otherwise();
      if constexpr (!std::is_void_v<Result>) {
        __builtin_unreachable();
      }
    }
  };
  switch (dtype) {
    case DType::f32:
      return call(float{});
    case DType::f64:
      return call(double{});
    case DType::bf16:
      return call(BFloat16{});
    case DType::f16:
      return call(Half{});
    case DType::i64:
      return call(std::int64_t{});
    case DType::i32:
      return call(std::int32_t{});
    case DType::u8:
      return call(std::uint8_t{});
    case DType::boolean:
      return call(bool{});
    case DType::i8:
      return call(std::int8_t{});
    case DType::f8e4m3:
      return call(Float8E4M3{});
    case DType::f8e5m2:
      return call(Float8E5M2{});
  }
  __builtin_unreachable();
}

/// Calls body(T{}) for the C++ type T of `dtype`, which is not one that is only stored: the
/// dispatcher refuses these before a kernel is called.
template <class Body>
inline auto visit(DType dtype, Body&& body) {
  return visit<AllTypes>(dtype, body, [] {});
}

/// Calls the body with all types, those that are only stored included.
template <class Body>
inline auto visit_stored(DType dtype, Body&& body) {
  return visit<StoredTypes>(dtype, body, [] {});
}

/// Calls body with 0 of the unsigned integer that is as wide as the element type: enough for code
/// that only moves elements.
template <class Body>
inline auto visit_width(DType dtype, Body&& body) {
  switch (size_of(dtype)) {
    case 8:
      return body(std::uint64_t{});
    case 4:
      return body(std::uint32_t{});
    case 2:
      return body(std::uint16_t{});
    default:
      return body(std::uint8_t{});
  }
}

}  // namespace tessera::kernels
