#pragma once
// From an element type to its C++ type: what selects code by the element type goes through here.

#include <cstdint>
#include <tessera/element_types.hpp>
#include <type_traits>

namespace tessera::kernels {

namespace dtype_detail {

template <class Set, class Result, class Body, class Otherwise, class T, class... Rest>
[[gnu::always_inline]] inline Result visit_from(DType dtype, Body& body, Otherwise& otherwise,
                                                Types<T, Rest...> /*left*/) {
  if (dtype == dtype_of<T>) {
    if constexpr (Set::template contains<T>) {
      return body(T{});
    } else {
      otherwise();
      if constexpr (std::is_void_v<Result>) {
        return;
      }
      __builtin_unreachable();
    }
  }
  if constexpr (sizeof...(Rest) > 0) {
    return visit_from<Set, Result>(dtype, body, otherwise, Types<Rest...>{});
  }
  __builtin_unreachable();
}

}  // namespace dtype_detail

/// Calls body(T{}) for the C++ type T of `dtype` if T is in `Set`, else otherwise(). All calls of
/// body return one type; a body that returns a value needs an otherwise() that throws.
template <class Set, class Body, class Otherwise>
inline auto visit(DType dtype, Body&& body, Otherwise&& otherwise) {
  using Result = decltype(body(typename Set::first{}));
  return dtype_detail::visit_from<Set, Result>(dtype, body, otherwise, StoredTypes{});
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
