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
inline __device__ std::int64_t offset_of(const ElementArguments& a, const StridedArray& x,
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

/// Element number `i` of an operand of any type and layout. It is a call: as a part of each kernel
/// it would make compiling them ten times as long.
template <class C>
__device__ __noinline__ C operand_at(const ElementArguments& a, const StridedArray& x,
                                     std::int64_t i) {
  return load<C>(x.data, x.type, offset_of(a, x, i));
}

/// Writes element number `i` of the result, of any type and layout.
template <class C>
__device__ __noinline__ void write_result(const ElementArguments& a, std::int64_t i, C value) {
  store(a.result.data, a.result.type, offset_of(a, a.result, i), value);
}

/// With elements computed as C.
template <class F, class C, std::size_t... n, std::size_t... m>
__device__ void compute(const ElementArguments& a, std::index_sequence<n...>,
                        std::index_sequence<m...>) {
  each_element(a.count, [&](std::int64_t i) {
    write_result(a, i,
                 value_of<F>(operand_at<C>(a, a.operands[n], i)..., convert<C>(a.numbers[m])...));
  });
}

/// Elements of T that lie side by side in all operands and in the result, computed as float. False
/// if it is not so.
template <class F, class T, std::size_t... n, std::size_t... m>
__device__ bool compute_dense(const ElementArguments& a, DType type, std::index_sequence<n...>,
                              std::index_sequence<m...>) {
  const auto fits = [&](const StridedArray& x) { return x.contiguous && x.type == type; };
  if (!(fits(a.result) && ... && fits(a.operands[n]))) {
    return false;
  }
  T* const result = static_cast<T*>(a.result.data);
  each_element(a.count, [&](std::int64_t i) {
    result[i] = convert<T>(
        value_of<F>(element<float, T>(a.operands[n].data, i)..., convert<float>(a.numbers[m])...));
  });
  return true;
}

/// For floating types that are computed in float.
template <class F, int operands, int numbers>
__device__ void compute_f32(const ElementArguments& a) {
  if constexpr (F::takes != functions::Takes::bits) {
    constexpr std::make_index_sequence<operands> n;
    constexpr std::make_index_sequence<numbers> m;
    if (!compute_dense<F, float>(a, DType::f32, n, m) &&
        !compute_dense<F, BFloat16>(a, DType::bf16, n, m)) {
      compute<F, float>(a, n, m);
    }
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
