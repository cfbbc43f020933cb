// The kernel of a function of elements (modules/ops/pointwise/functions). The function itself is
// the CPU's; here is only the way through the elements.
#pragma once
#include <cstdint>
#include <tessera/math.hpp>
#include <utility>

#include "kernels/arguments.hpp"
#include "kernels/math.hpp"
#include "kernels/memory.hpp"

namespace tessera::cuda {

/// Where element number `i` of a call's shape is in an array.
inline __device__ std::int64_t offset_of(const ElementArguments& a, const Strided& x,
                                         std::int64_t i) {
  if (x.contiguous) return i;
  std::int64_t offset = 0;
  for (int dim = a.dims - 1; dim >= 0; --dim) {
    const std::int64_t extent = a.extents[dim];
    offset += i % extent * x.strides[dim];
    i /= extent;
  }
  return offset;
}

/// Calls body(i) for the elements that this thread computes.
template <class Body>
__device__ void each_element(std::int64_t count, Body body) {
  for (std::int64_t i = thread_place(); i < count; i += thread_count()) body(i);
}

template <class F, class... T>
__device__ auto value_of(T... arguments) {
  if constexpr (F::is_truth) {
    return static_cast<bool>(F::holds(arguments...));
  } else {
    return F::value(arguments...);
  }
}

/// With elements computed as C.
template <class F, class C, std::size_t... n, std::size_t... m>
__device__ void compute(const ElementArguments& a, std::index_sequence<n...>,
                        std::index_sequence<m...>) {
  each_element(a.count, [&](std::int64_t i) {
    const auto value = value_of<F>(
        load<C>(a.operands[n].data, a.operands[n].type, offset_of(a, a.operands[n], i))...,
        convert<C>(a.numbers[m])...);
    store(a.result.data, a.result.type, offset_of(a, a.result, i), value);
  });
}

/// For floating types that are computed in float.
template <class F, int operands, int numbers>
__device__ void compute_f32(const ElementArguments& a) {
  if constexpr (F::takes != functions::Takes::bits) {
    compute<F, float>(a, std::make_index_sequence<operands>{}, std::make_index_sequence<numbers>{});
  }
}

template <class F, class C, int operands, int numbers>
__device__ void compute_as(const ElementArguments& a) {
  compute<F, C>(a, std::make_index_sequence<operands>{}, std::make_index_sequence<numbers>{});
}

/// For the other types.
template <class F, int operands, int numbers>
__device__ void compute_others(const ElementArguments& a) {
  const DType type = a.computed;
  using functions::Takes;
  constexpr bool floating = F::takes != Takes::bits;
  constexpr bool integers = F::takes != Takes::floating;
  constexpr bool booleans = F::takes == Takes::everything || F::takes == Takes::bits;
  if constexpr (floating) {
    if (type == DType::f64) compute_as<F, double, operands, numbers>(a);
  }
  if constexpr (integers) {
    if (type == DType::i64) compute_as<F, std::int64_t, operands, numbers>(a);
    if (type == DType::i32) compute_as<F, std::int32_t, operands, numbers>(a);
    if (type == DType::u8) compute_as<F, std::uint8_t, operands, numbers>(a);
  }
  if constexpr (booleans) {
    if (type == DType::boolean) compute_as<F, bool, operands, numbers>(a);
  }
}

}  // namespace tessera::cuda
