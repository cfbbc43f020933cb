#pragma once
// The C++ type of each element type: the list from which kernels, conversions and bindings follow.

#include <cstdint>
#include <tessera/dtype.hpp>
#include <tessera/float8.hpp>
#include <tessera/half.hpp>
#include <type_traits>

namespace tessera::kernels {

/// A set of element types.
template <class... All>
struct Types;
template <>
struct Types<> {};
template <class First, class... Rest>
struct Types<First, Rest...> {
  using first = First;
  template <class T>
  static constexpr bool contains = std::is_same_v<T, First> || (std::is_same_v<T, Rest> || ...);
};

/// All types, in the order of DType.
using StoredTypes = Types<float, double, BFloat16, Half, std::int64_t, std::int32_t, std::uint8_t,
                          bool, std::int8_t, Float8E4M3, Float8E5M2>;

namespace dtype_detail {

template <class T, class... All>
constexpr int place_in(Types<All...> /*all*/) {
  int place = 0;
  static_cast<void>(((std::is_same_v<T, All> || (++place, false)) || ...));
  return place;
}

template <class... All>
constexpr bool fits_facts(Types<All...> /*all*/) {
  int place = 0;
  return sizeof...(All) == dtype_count && ((dtype_facts[place++].bytes == sizeof(All)) && ...);
}
static_assert(fits_facts(StoredTypes{}), "a C++ type for each row of dtype_facts, in their order");

/// Those of `Rest` that are not only stored, after those that are known to be so.
template <class Known, class... Rest>
struct ComputeTypes {
  using type = Known;
};
template <class... Known, class First, class... Rest>
struct ComputeTypes<Types<Known...>, First, Rest...>
    : ComputeTypes<std::conditional_t<dtype_facts[place_in<First>(StoredTypes{})].stored_only,
                                      Types<Known...>, Types<Known..., First>>,
                   Rest...> {};
template <class... All>
typename ComputeTypes<Types<>, All...>::type compute_types(Types<All...> all);

}  // namespace dtype_detail

/// The element type of a C++ type.
template <class T>
  requires(StoredTypes::contains<T>)
inline constexpr DType dtype_of = static_cast<DType>(dtype_detail::place_in<T>(StoredTypes{}));

/// The types that operators compute with: those that are not only stored.
using AllTypes = decltype(dtype_detail::compute_types(StoredTypes{}));
using FloatingTypes = Types<float, double, BFloat16, Half>;
using IndexTypes = Types<std::int64_t, std::int32_t>;

}  // namespace tessera::kernels
