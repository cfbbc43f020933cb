#pragma once
// math.hpp for float and double, by the C library.

#include <cmath>
#include <cstdint>
#include <tessera/math.hpp>

namespace tessera::math {

template <class T>
struct Library {
  static T constant(double value) { return static_cast<T>(value); }
  static T abs(T x) { return std::abs(x); }
  static T sqrt(T x) { return std::sqrt(x); }
  static T exp(T x) { return std::exp(x); }
  static T exp2(T x) { return std::exp2(x); }
  static T expm1(T x) { return std::expm1(x); }
  static T log(T x) { return std::log(x); }
  static T log2(T x) { return std::log2(x); }
  static T log10(T x) { return std::log10(x); }
  static T log1p(T x) { return std::log1p(x); }
  static T sin(T x) { return std::sin(x); }
  static T cos(T x) { return std::cos(x); }
  static T tan(T x) { return std::tan(x); }
  static T asin(T x) { return std::asin(x); }
  static T acos(T x) { return std::acos(x); }
  static T atan(T x) { return std::atan(x); }
  static T sinh(T x) { return std::sinh(x); }
  static T cosh(T x) { return std::cosh(x); }
  static T tanh(T x) { return std::tanh(x); }
  static T erf(T x) { return std::erf(x); }
  static T sigmoid(T x) { return 1 / (1 + std::exp(-x)); }
  static T softplus(T x) { return (x > 0 ? x : T{}) + std::log1p(std::exp(-std::abs(x))); }
  static T pow(T x, T exponent) { return std::pow(x, exponent); }
  static T fmod(T a, T b) { return std::fmod(a, b); }
  static T atan2(T y, T x) { return std::atan2(y, x); }
  static T normal_tail(T x) { return std::erfc(x * static_cast<T>(0.70710678118654752440)) / 2; }
  static T floor(T x) { return std::floor(x); }
  static T ceil(T x) { return std::ceil(x); }
  static T round(T x) { return __builtin_elementwise_roundeven(x); }
  static T trunc(T x) { return std::trunc(x); }
  static T copy_sign(T magnitude, T sign) { return std::copysign(magnitude, sign); }
  static T filled(T /*x*/, double value) { return static_cast<T>(value); }
  static T select(bool mask, T a, T b) { return mask ? a : b; }
  static T square(T x) { return x * x; }
  static T power(T x, double exponent) { return std::pow(x, static_cast<T>(exponent)); }
  template <class F, class... More>
  static T each(F f, T x, More... more) {
    return f(x, more...);
  }
};

template <>
struct Of<float> : Library<float> {};
template <>
struct Of<double> : Library<double> {};

}  // namespace tessera::math
