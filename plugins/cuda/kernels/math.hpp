// tessera/math.hpp for a device's own numbers, float and double. nvcc has device functions for the
// C library's names.
#pragma once
#include <cmath>
#include <tessera/math.hpp>

namespace tessera::math {

template <class T>
struct OnDevice {
  static constexpr __host__ __device__ T constant(double value) { return static_cast<T>(value); }
  static __host__ __device__ T abs(T x) { return std::fabs(x); }
  static __host__ __device__ T sqrt(T x) { return std::sqrt(x); }
  static __host__ __device__ T exp(T x) { return std::exp(x); }
  static __host__ __device__ T exp2(T x) { return std::exp2(x); }
  static __host__ __device__ T expm1(T x) { return std::expm1(x); }
  static __host__ __device__ T log(T x) { return std::log(x); }
  static __host__ __device__ T log2(T x) { return std::log2(x); }
  static __host__ __device__ T log10(T x) { return std::log10(x); }
  static __host__ __device__ T log1p(T x) { return std::log1p(x); }
  static __host__ __device__ T sin(T x) { return std::sin(x); }
  static __host__ __device__ T cos(T x) { return std::cos(x); }
  static __host__ __device__ T tan(T x) { return std::tan(x); }
  static __host__ __device__ T asin(T x) { return std::asin(x); }
  static __host__ __device__ T acos(T x) { return std::acos(x); }
  static __host__ __device__ T atan(T x) { return std::atan(x); }
  static __host__ __device__ T sinh(T x) { return std::sinh(x); }
  static __host__ __device__ T cosh(T x) { return std::cosh(x); }
  static __host__ __device__ T tanh(T x) { return std::tanh(x); }
  static __host__ __device__ T erf(T x) { return std::erf(x); }
  static __host__ __device__ T sigmoid(T x) { return 1 / (1 + std::exp(-x)); }
  static __host__ __device__ T softplus(T x) {
    return (x > 0 ? x : T{}) + std::log1p(std::exp(-std::fabs(x)));
  }
  static __host__ __device__ T normal_tail(T x) {
    return std::erfc(x * static_cast<T>(0.70710678118654752440)) / 2;
  }
  static __host__ __device__ T floor(T x) { return std::floor(x); }
  static __host__ __device__ T ceil(T x) { return std::ceil(x); }
  static __host__ __device__ T round(T x) { return std::rint(x); }  // ties to even
  static __host__ __device__ T trunc(T x) { return std::trunc(x); }
  static __host__ __device__ T pow(T x, T exponent) { return std::pow(x, exponent); }
  static __host__ __device__ T fmod(T a, T b) { return std::fmod(a, b); }
  static __host__ __device__ T atan2(T y, T x) { return std::atan2(y, x); }
  static __host__ __device__ T copy_sign(T magnitude, T sign) {
    return std::copysign(magnitude, sign);
  }
};

template <>
struct Of<float> : OnDevice<float> {};
template <>
struct Of<double> : OnDevice<double> {};

}  // namespace tessera::math
