#pragma once
// Vocabulary of the functions of elements (docs/adding-an-operator.md): plain C++ without
// the library of a host, which any compiler can read. So one structure is the kernel, which
// computes with vectors, the code that is generated for neighbouring operators, a device's kernel,
// which computes with its own numbers, and, of second derivatives, calls of operators.

#include <cstdint>
#include <type_traits>

// Vectors never cross a real call, so their calling convention does not matter: they have the
// instructions of the loop that everything is inlined into.
#pragma clang diagnostic ignored "-Wpsabi"
#pragma clang attribute push([[gnu::always_inline]], apply_to = function)
// A value is a number or a vector; a copy of a tensor happens in second derivatives only.
// NOLINTBEGIN(performance-unnecessary-value-param)

namespace tessera::math {

/// How to compute with T. A class says it itself, as T::Math; for other types it is specialised:
/// for float and double in math_library.hpp, for the kernels' vectors in their headers.
template <class T>
struct Of : T::Math {};

/// `value` in each lane.
template <class T>
constexpr T constant(double value) {
  return Of<T>::constant(value);
}

template <class T>
constexpr T abs(T x) {
  return Of<T>::abs(x);
}
template <class T>
constexpr T sqrt(T x) {
  return Of<T>::sqrt(x);
}
template <class T>
constexpr T exp(T x) {
  return Of<T>::exp(x);
}
template <class T>
constexpr T exp2(T x) {
  return Of<T>::exp2(x);
}
template <class T>
constexpr T expm1(T x) {
  return Of<T>::expm1(x);
}
template <class T>
constexpr T log(T x) {
  return Of<T>::log(x);
}
template <class T>
constexpr T log2(T x) {
  return Of<T>::log2(x);
}
template <class T>
constexpr T log10(T x) {
  return Of<T>::log10(x);
}
template <class T>
constexpr T log1p(T x) {
  return Of<T>::log1p(x);
}
template <class T>
constexpr T sin(T x) {
  return Of<T>::sin(x);
}
template <class T>
constexpr T cos(T x) {
  return Of<T>::cos(x);
}
template <class T>
constexpr T tan(T x) {
  return Of<T>::tan(x);
}
template <class T>
constexpr T asin(T x) {
  return Of<T>::asin(x);
}
template <class T>
constexpr T acos(T x) {
  return Of<T>::acos(x);
}
template <class T>
constexpr T atan(T x) {
  return Of<T>::atan(x);
}
template <class T>
constexpr T sinh(T x) {
  return Of<T>::sinh(x);
}
template <class T>
constexpr T cosh(T x) {
  return Of<T>::cosh(x);
}
template <class T>
constexpr T tanh(T x) {
  return Of<T>::tanh(x);
}
template <class T>
constexpr T erf(T x) {
  return Of<T>::erf(x);
}
/// 1 / (1 + exp(-x)).
template <class T>
constexpr T sigmoid(T x) {
  return Of<T>::sigmoid(x);
}
/// log(1 + exp(x)), for any x.
template <class T>
constexpr T softplus(T x) {
  return Of<T>::softplus(x);
}
/// The probability that a standard normal value is above x >= 0.
template <class T>
constexpr T normal_tail(T x) {
  return Of<T>::normal_tail(x);
}
template <class T>
constexpr T floor(T x) {
  return Of<T>::floor(x);
}
template <class T>
constexpr T ceil(T x) {
  return Of<T>::ceil(x);
}
/// Ties to even.
template <class T>
constexpr T round(T x) {
  return Of<T>::round(x);
}
template <class T>
constexpr T trunc(T x) {
  return Of<T>::trunc(x);
}
template <class T>
constexpr T pow(T x, T exponent) {
  return Of<T>::pow(x, exponent);
}
template <class T>
constexpr T fmod(T a, T b) {
  return Of<T>::fmod(a, b);
}
template <class T>
constexpr T atan2(T y, T x) {
  return Of<T>::atan2(y, x);
}
template <class T>
constexpr T copy_sign(T magnitude, T sign) {
  return Of<T>::copy_sign(magnitude, sign);
}
/// -1, 0 or 1; NaN stays.
template <class T>
constexpr T sign(T x) {
  if constexpr (std::is_class_v<T>) {
    return Of<T>::sign(x);
  } else {
    return x > 0 ? T{} + 1 : (x < 0 ? T{} - 1 : x);
  }
}
/// The larger and the smaller of two; b where one of them is NaN. One instruction.
template <class T>
constexpr T maximum(T a, T b) {
  return a > b ? a : b;
}
template <class T>
constexpr T minimum(T a, T b) {
  return a < b ? a : b;
}
/// The greater of both, and NaN where one of them is.
template <class T>
constexpr T larger(T a, T b) {
  return a != a ? a : (a > b ? a : b);
}
template <class T>
constexpr T smaller(T a, T b) {
  return a != a ? a : (a < b ? a : b);
}

/// f of each lane.
template <class F, class T, class... More>
constexpr T each(F f, T x, More... more) {
  return Of<T>::each(f, x, more...);
}

// Helpers of second derivatives, which are computed with tensors.
/// `value` wherever x is.
template <class T>
constexpr T filled(T x, double value) {
  return Of<T>::filled(x, value);
}
/// `mask` chooses a, else b.
template <class Mask, class T>
constexpr T select(Mask mask, T a, T b) {
  return Of<T>::select(mask, a, b);
}
template <class T>
constexpr T square(T x) {
  return Of<T>::square(x);
}
template <class T>
constexpr T power(T x, double exponent) {
  return Of<T>::power(x, exponent);
}

// Integers: their sums and products wrap.
template <class T>
using Wrapping = std::conditional_t<
    !std::is_integral_v<T>, T,
    std::conditional_t<sizeof(T) == sizeof(std::uint64_t), std::uint64_t, std::uint32_t>>;
/// With numbers that are not whole.
template <class T>
inline constexpr bool is_floating = !std::is_integral_v<T>;
template <class T>
inline constexpr bool is_boolean = std::is_same_v<T, bool>;

}  // namespace tessera::math

namespace tessera::functions {

template <class... F>
struct List {};

/// How a kernel goes through the elements.
enum class Loop : std::uint8_t {
  vectors,   // by vectors, which have the functions that it calls
  elements,  // one by one, of which the compiler makes vectors: arithmetic, of integers too
  library    // one by one, by functions of the C library: it computes with float and double only
};

/// Types that the operands may have.
enum class Takes : std::uint8_t { floating, numbers, everything, bits };

/// Defaults of a function of elements. Numbers are an operator's dynamic arguments. The function
/// has one of
///     template <class T> static constexpr T value(T operand..., T number...);
///     template <class T> static constexpr auto holds(T operand..., T number...);  // a truth
/// and, with one operand and a gradient, one of
///     template <class T> static constexpr T slope(T x, T number...);
///     template <class T> static constexpr T gradient(T x, T grad, T number...);  // slope * grad
/// and, unless it is 0, the second derivative by what tensors have:
///     template <class T> static T second(T x, double number...);
struct Function {
  static constexpr Loop loop = Loop::vectors;
  static constexpr Loop integer_loop = Loop::elements;
  static constexpr int vectors = 4;  // that are computed as one, as far as registers go
  static constexpr Takes takes = Takes::floating;
  static constexpr bool is_truth = false;  // it has `holds`
};

/// grad times the slope of a function of one operand.
template <class F>
struct GradientOf : Function {
  static constexpr Loop loop = F::loop;
  static constexpr int vectors = F::vectors;

  template <class T, class... Numbers>
  static constexpr T value(T x, T grad, Numbers... numbers) {
    if constexpr (requires { F::gradient(x, grad, numbers...); }) {
      return F::gradient(x, grad, numbers...);
    } else {
      return F::slope(x, numbers...) * grad;
    }
  }
};

/// A function that computes with numbers only, of vectors: of each lane.
template <class F>
struct LanesOf {
  template <class T, class... More>
  static constexpr T value(T x, More... more) {
    return math::each([](auto... lanes) { return F::value(lanes...); }, x, more...);
  }
};

/// A truth as a number: 1 or 0.
template <class F>
struct TruthOf {
  template <class T, class... More>
  static constexpr T value(T x, More... more) {
    return F::holds(x, more...) ? T{} + 1 : T{};
  }
};

}  // namespace tessera::functions

// NOLINTEND(performance-unnecessary-value-param)
#pragma clang attribute pop
