#pragma once
// From an element type to its C++ type: the only switch over element types that selects code.

#include <cstdint>
#include <tessera/dtype.hpp>
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
using AllTypes =
    Types<float, double, BFloat16, Half, std::int64_t, std::int32_t, std::uint8_t, bool>;

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
  }
  __builtin_unreachable();
}

/// Calls body(T{}) for the C++ type T of `dtype`, whichever it is.
template <class Body>
inline auto visit(DType dtype, Body&& body) {
  return visit<AllTypes>(dtype, body, [] {});
}

/// Calls body with 0 of the unsigned integer that is as wide as the element type: enough for code
/// that only moves elements.
template <class Body>
inline auto visit_width(DType dtype, Body&& body) {
  return visit(dtype, [&]<class T>(T) {
    if constexpr (sizeof(T) == 8) {
      return body(std::uint64_t{});
    } else if constexpr (sizeof(T) == 4) {
      return body(std::uint32_t{});
    } else if constexpr (sizeof(T) == 2) {
      return body(std::uint16_t{});
    } else {
      return body(std::uint8_t{});
    }
  });
}

}  // namespace tessera::kernels
