// Elements in a device's memory, by their type.
#pragma once
#include <cstdint>
#include <tessera/dtype.hpp>
#include <tessera/float8.hpp>
#include <tessera/half.hpp>
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

/// Element number `at` as a C.
template <class C>
__device__ C load(const void* data, DType type, std::int64_t at) {
  switch (type) {
    case DType::f32:
      return element<C, float>(data, at);
    case DType::f64:
      return element<C, double>(data, at);
    case DType::bf16:
      return element<C, BFloat16>(data, at);
    case DType::f16:
      return element<C, Half>(data, at);
    case DType::i64:
      return element<C, std::int64_t>(data, at);
    case DType::i32:
      return element<C, std::int32_t>(data, at);
    case DType::u8:
      return element<C, std::uint8_t>(data, at);
    case DType::boolean:
      return element<C, bool>(data, at);
    case DType::i8:
      return element<C, std::int8_t>(data, at);
    case DType::f8e4m3:
      return element<C, kernels::Float8E4M3>(data, at);
    case DType::f8e5m2:
      return element<C, kernels::Float8E5M2>(data, at);
  }
  return C{};
}

/// Writes a C as an element of the type, as casts convert it.
template <class C>
__device__ void store(void* data, DType type, std::int64_t at, C value) {
  switch (type) {
    case DType::f32:
      return set_element<float>(data, at, value);
    case DType::f64:
      return set_element<double>(data, at, value);
    case DType::bf16:
      return set_element<BFloat16>(data, at, value);
    case DType::f16:
      return set_element<Half>(data, at, value);
    case DType::i64:
      return set_element<std::int64_t>(data, at, value);
    case DType::i32:
      return set_element<std::int32_t>(data, at, value);
    case DType::u8:
      return set_element<std::uint8_t>(data, at, value);
    case DType::boolean:
      return set_element<bool>(data, at, value);
    case DType::i8:
      return set_element<std::int8_t>(data, at, value);
    case DType::f8e4m3:
      return set_element<kernels::Float8E4M3>(data, at, value);
    case DType::f8e5m2:
      return set_element<kernels::Float8E5M2>(data, at, value);
  }
}

}  // namespace tessera::cuda
