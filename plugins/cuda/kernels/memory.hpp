// Elements in a device's memory, by their type.
#pragma once
#include <cstdint>
#include <tessera/element_types.hpp>
#include <type_traits>

#include "pointwise/kernels/convert.hpp"

namespace tessera::cuda {

using kernels::BFloat16;
using kernels::convert;
using kernels::Half;

/// The type that a kernel computes with for elements of a type: T itself, or float for 16 and 8
/// bits of a floating type.
template <class T>
using Computed = std::conditional_t<kernels::kNarrow<T>, float, T>;

/// This thread's place among all threads of the launch (along x), and how many there are.
inline __device__ std::int64_t thread_place() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
inline __device__ std::int64_t thread_count() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

template <class C, class T>
__device__ C element(const void* data, std::int64_t at) {
  return convert<C>(static_cast<const T*>(data)[at]);
}

template <class T, class C>
__device__ void set_element(void* data, std::int64_t at, C value) {
  static_cast<T*>(data)[at] = convert<T>(value);
}

template <class C, class... T>
__device__ C load_one_of(const void* data, DType type, std::int64_t at, kernels::Types<T...>) {
  C value{};
  static_cast<void>(
      ((type == kernels::dtype_of<T> && (value = element<C, T>(data, at), true)) || ...));
  return value;
}
template <class C, class... T>
__device__ void store_one_of(void* data, DType type, std::int64_t at, C value,
                             kernels::Types<T...>) {
  static_cast<void>(
      ((type == kernels::dtype_of<T> && (set_element<T>(data, at, value), true)) || ...));
}

/// Element number `at` as a C.
template <class C>
__device__ C load(const void* data, DType type, std::int64_t at) {
  return load_one_of<C>(data, type, at, kernels::StoredTypes{});
}

/// Writes a C as an element of the type, as casts convert it.
template <class C>
__device__ void store(void* data, DType type, std::int64_t at, C value) {
  store_one_of(data, type, at, value, kernels::StoredTypes{});
}

}  // namespace tessera::cuda
