#pragma once
// The functions of one element, each with its derivatives. To add one: write its structure here,
// add it to the list at the end, and declare it in pointwise.cppm. Everything else follows from the
// list (unary.cpp, kernels/unary.cpp): the operators name, name_, name_out and name_backward, their
// kernels, their gradients and the code that is generated for them.
//
// f32: at most about 2 units in the last place, in the whole range; but gelu below 0 to 5e-6
// relative, and 0 below -6; and its tanh form far below 0, where 1 + tanh cancels, only to about
// 1e-7 |x| absolute. relu(NaN) is NaN.

#include <limits>
#include <numbers>
#include <tessera/math.hpp>

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)
// A value is a number or a vector; a copy of a tensor happens in second derivatives only.
// NOLINTBEGIN(performance-unnecessary-value-param)

namespace tessera::functions {

/// Treatment of integers.
enum class OfIntegers : std::uint8_t {
  cast,     // they are cast to f32
  compute,  // the function is computed with them
  copy      // the function does not change them
};

/// Besides a Function's members, a function of this file has its operator's name and description.
///     static constexpr const char* name = "exp";
///     static constexpr const char* about = "e to the power of x.";
struct Unary : Function {
  static constexpr OfIntegers of_integers = OfIntegers::cast;
  static constexpr bool monotone = false;  // it never decreases
  static constexpr bool linear = false;    // it is its own gradient
};

// ---- arithmetic ----

struct Neg : Unary {
  static constexpr const char* name = "neg";
  static constexpr const char* about = "-x.";
  static constexpr auto of_integers = OfIntegers::compute;
  static constexpr auto takes = Takes::numbers;
  static constexpr bool linear = true;
  template <class T>
  static constexpr T value(T x) {
    if constexpr (math::is_floating<T>) {
      return -x;
    } else {
      return static_cast<T>(math::Wrapping<T>{} - static_cast<math::Wrapping<T>>(x));
    }
  }
};

struct Abs : Unary {
  static constexpr const char* name = "abs";
  static constexpr const char* about = "The absolute value; its gradient at 0 is 0.";
  static constexpr auto of_integers = OfIntegers::compute;
  static constexpr auto takes = Takes::numbers;
  template <class T>
  static constexpr T value(T x) {
    if constexpr (math::is_floating<T>) {
      return math::abs(x);
    } else {
      return x < T{} ? Neg::value(x) : x;
    }
  }
  template <class T>
  static constexpr T slope(T x) {
    const T one = T{} + 1;
    return x > 0 ? one : (x < 0 ? -one : x);
  }
};

struct Square : Unary {
  static constexpr const char* name = "square";
  static constexpr const char* about = "x x.";
  static constexpr auto of_integers = OfIntegers::compute;
  static constexpr auto takes = Takes::numbers;
  template <class T>
  static constexpr T value(T x) {
    const auto wrapping = static_cast<math::Wrapping<T>>(x);
    return static_cast<T>(wrapping * wrapping);
  }
  template <class T>
  static constexpr T slope(T x) {
    return x + x;
  }
  template <class T>
  static T second(T x) {
    return math::filled(x, 2);
  }
};

struct Sign : Unary {
  static constexpr const char* name = "sign";
  static constexpr const char* about = "-1, 0 or 1; its gradient is 0.";
  static constexpr auto of_integers = OfIntegers::compute;
  static constexpr auto takes = Takes::numbers;
  template <class T>
  static constexpr T value(T x) {
    if constexpr (math::is_floating<T>) {
      return math::sign(x);
    } else {
      return static_cast<T>((x > T{} ? 1 : 0) - (x < T{} ? 1 : 0));
    }
  }
  template <class T>
  static constexpr T slope(T) {
    return T{};
  }
};

struct Sqrt : Unary {
  static constexpr const char* name = "sqrt";
  static constexpr const char* about = "The square root.";
  template <class T>
  static constexpr T value(T x) {
    return math::sqrt(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return math::constant<T>(0.5) / math::sqrt(x);
  }
  template <class T>
  static T second(T x) {
    return math::power(x, -1.5) * -0.25;
  }
};

struct Rsqrt : Unary {
  static constexpr const char* name = "rsqrt";
  static constexpr const char* about = "1 / sqrt(x).";
  template <class T>
  static constexpr T value(T x) {
    return 1 / math::sqrt(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return math::constant<T>(-0.5) / (x * math::sqrt(x));
  }
  template <class T>
  static T second(T x) {
    return math::power(x, -2.5) * 0.75;
  }
};

struct Reciprocal : Unary {
  static constexpr const char* name = "reciprocal";
  static constexpr const char* about = "1 / x.";
  template <class T>
  static constexpr T value(T x) {
    return 1 / x;
  }
  template <class T>
  static constexpr T slope(T x) {
    return -1 / (x * x);
  }
  template <class T>
  static T second(T x) {
    return math::power(x, -3) * 2;
  }
};

// ---- rounding ----

struct Floor : Unary {
  static constexpr const char* name = "floor";
  static constexpr const char* about = "The largest integer not above x.";
  static constexpr auto of_integers = OfIntegers::copy;
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return math::floor(x);
  }
  template <class T>
  static constexpr T slope(T) {
    return T{};
  }
};

struct Ceil : Unary {
  static constexpr const char* name = "ceil";
  static constexpr const char* about = "The smallest integer not below x.";
  static constexpr auto of_integers = OfIntegers::copy;
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return math::ceil(x);
  }
  template <class T>
  static constexpr T slope(T) {
    return T{};
  }
};

struct Round : Unary {
  static constexpr const char* name = "round";
  static constexpr const char* about = "The nearest integer, ties to even.";
  static constexpr auto of_integers = OfIntegers::copy;
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return math::round(x);
  }
  template <class T>
  static constexpr T slope(T) {
    return T{};
  }
};

struct Trunc : Unary {
  static constexpr const char* name = "trunc";
  static constexpr const char* about = "x rounded towards 0.";
  static constexpr auto of_integers = OfIntegers::copy;
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return math::trunc(x);
  }
  template <class T>
  static constexpr T slope(T) {
    return T{};
  }
};

struct Frac : Unary {
  static constexpr const char* name = "frac";
  static constexpr const char* about = "x - trunc(x).";
  template <class T>
  static constexpr T value(T x) {
    return x - math::trunc(x);
  }
  template <class T>
  static constexpr T slope(T) {
    return T{} + 1;
  }
};

// ---- exponentials and logarithms ----

struct Exp : Unary {
  static constexpr const char* name = "exp";
  static constexpr const char* about = "e to the power of x.";
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return math::exp(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return math::exp(x);
  }
  template <class T>
  static T second(T x) {
    return math::exp(x);
  }
};

struct Expm1 : Unary {
  static constexpr const char* name = "expm1";
  static constexpr const char* about = "exp(x) - 1, accurate near 0.";
  static constexpr bool monotone = true;
  static constexpr int vectors = 1;
  template <class T>
  static constexpr T value(T x) {
    return math::expm1(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return math::exp(x);
  }
  template <class T>
  static T second(T x) {
    return math::exp(x);
  }
};

struct Log : Unary {
  static constexpr const char* name = "log";
  static constexpr const char* about = "The natural logarithm.";
  template <class T>
  static constexpr T value(T x) {
    return math::log(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return 1 / x;
  }
  template <class T>
  static T second(T x) {
    return -math::power(x, -2);
  }
};

struct Log1p : Unary {
  static constexpr const char* name = "log1p";
  static constexpr const char* about = "log(1 + x), accurate near 0.";
  static constexpr int vectors = 1;
  template <class T>
  static constexpr T value(T x) {
    return math::log1p(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return 1 / (1 + x);
  }
  template <class T>
  static T second(T x) {
    return -math::power(x + 1, -2);
  }
};

// ---- with sines, and the error function ----

struct Sin : Unary {
  static constexpr const char* name = "sin";
  static constexpr const char* about = "The sine.";
  static constexpr int vectors = 1;
  template <class T>
  static constexpr T value(T x) {
    return math::sin(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return math::cos(x);
  }
  template <class T>
  static T second(T x) {
    return -math::sin(x);
  }
};

struct Cos : Unary {
  static constexpr const char* name = "cos";
  static constexpr const char* about = "The cosine.";
  static constexpr int vectors = 1;
  template <class T>
  static constexpr T value(T x) {
    return math::cos(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return -math::sin(x);
  }
  template <class T>
  static T second(T x) {
    return -math::cos(x);
  }
};

struct Tanh : Unary {
  static constexpr const char* name = "tanh";
  static constexpr const char* about = "The hyperbolic tangent.";
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return math::tanh(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    const T y = math::tanh(x);
    return 1 - y * y;
  }
  template <class T>
  static T second(T x) {
    const T y = math::tanh(x);
    return y * -2 * (1 - math::square(y));
  }
};

struct Erf : Unary {
  static constexpr const char* name = "erf";
  static constexpr const char* about = "The error function.";
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return math::erf(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return math::constant<T>(2 * std::numbers::inv_sqrtpi) * math::exp(-x * x);
  }
  template <class T>
  static T second(T x) {
    return x * (-4 * std::numbers::inv_sqrtpi) * math::exp(-math::square(x));
  }
};

// ---- activations ----

struct Sigmoid : Unary {
  static constexpr const char* name = "sigmoid";
  static constexpr const char* about = "1 / (1 + exp(-x)).";
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return math::sigmoid(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    const T y = math::sigmoid(x);
    return y * (1 - y);
  }
  template <class T>
  static T second(T x) {
    const T y = math::sigmoid(x);
    return y * (1 - y) * (y * -2 + 1);
  }
};

struct Relu : Unary {
  static constexpr const char* name = "relu";
  static constexpr const char* about = "x if x > 0, else 0.";
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return x < 0 ? T{} : x;
  }
  template <class T>
  static constexpr T slope(T x) {
    return x > 0 ? T{} + 1 : T{};
  }
};

struct Silu : Unary {
  static constexpr const char* name = "silu";
  static constexpr const char* about = "x sigmoid(x).";
  template <class T>
  static constexpr T value(T x) {
    return x * math::sigmoid(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    const T s = math::sigmoid(x);
    return s * (1 + x * (1 - s));
  }
  template <class T>
  static T second(T x) {
    const T s = math::sigmoid(x);
    return s * (1 - s) * (x * (s * -2 + 1) + 2);
  }
};

/// x Phi(x) with the normal distribution function Phi. The operator gelu has both forms.
struct Gelu : Function {
  static constexpr int vectors = 2;
  template <class T>
  static constexpr T value(T x) {  // the share of x that is lost is the tail's, on both sides of 0
    // Finite, and NaN stays; no tail is left there.
    const T t = math::minimum(math::constant<T>(40), math::abs(x));
    return (x < 0 ? T{} : x) - t * math::normal_tail(t);
  }
  template <class T>
  static constexpr T slope(T x) {
    constexpr double density = 0.39894228040143267794;  // 1 / sqrt(2 pi)
    const T tail = math::normal_tail(math::abs(x));
    const T cumulative = x < 0 ? tail : 1 - tail;
    return cumulative + x * math::constant<T>(density) * math::exp(math::constant<T>(-0.5) * x * x);
  }
  /// phi(x) (2 - x^2)
  template <class T>
  static T second(T x) {
    constexpr double density = 0.39894228040143267794;
    return math::exp(math::square(x) * -0.5) * density * (2 - math::square(x));
  }
};

/// Its tanh approximation: Hendrycks and Gimpel, Gaussian Error Linear Units (2016).
struct GeluTanh : Function {
  static constexpr double factor = 0.79788456080286535588;  // sqrt(2 / pi)
  static constexpr double cubic = 0.044715;

  template <class T>
  static constexpr T argument(T x) {
    return math::constant<T>(factor) * (x + math::constant<T>(cubic) * x * x * x);
  }
  template <class T>
  static constexpr T value(T x) {
    return math::constant<T>(0.5) * x * (1 + math::tanh(argument(x)));
  }
  template <class T>
  static constexpr T slope(T x) {
    const T y = math::tanh(argument(x));
    const T inner = math::constant<T>(factor) * (1 + math::constant<T>(3 * cubic) * x * x);
    return math::constant<T>(0.5) * (1 + y + x * (1 - y * y) * inner);
  }
  /// f = x (1 + tanh u) / 2 with u = factor (x + cubic x^3)
  template <class T>
  static T second(T x) {
    const T slope_of_u = math::square(x) * (3 * cubic * factor) + factor;
    const T t = math::tanh(x * (math::square(x) * cubic + 1) * factor);
    const T slope_of_tanh = 1 - math::square(t);
    const T inner = x * (6 * cubic * factor) - t * math::square(slope_of_u) * 2;
    return slope_of_tanh * (slope_of_u + x * inner * 0.5);
  }
};

struct Hardswish : Unary {
  static constexpr const char* name = "hardswish";
  static constexpr const char* about = "x times hardsigmoid(x).";
  template <class T>
  static constexpr T within_0_and_6(T x) {
    return x < 0 ? T{} : (x > 6 ? T{} + 6 : x);
  }
  template <class T>
  static constexpr T value(T x) {
    return x * within_0_and_6(x + 3) / 6;
  }
  template <class T>
  static constexpr T slope(T x) {
    return x <= -3 ? T{} : (x < 3 ? x / 3 + math::constant<T>(0.5) : T{} + 1);
  }
  template <class T>
  static T second(T x) {
    return math::select(math::abs(x) < 3, math::filled(x, 1.0 / 3), math::filled(x, 0));
  }
};

struct Hardsigmoid : Unary {
  static constexpr const char* name = "hardsigmoid";
  static constexpr const char* about = "x / 6 + 1 / 2, limited to [0, 1].";
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return Hardswish::within_0_and_6(x + 3) / 6;
  }
  template <class T>
  static constexpr T slope(T x) {
    return ((x > -3) & (x < 3)) ? (T{} + 1) / 6 : T{};
  }
};

// ---- by the C library, one element after the other ----

// The kernels' loops have no fused instructions, so generated code must not have them either.
#pragma clang fp contract(off)

struct LibraryUnary : Unary {
  static constexpr auto loop = Loop::library;
};

struct Exp2 : LibraryUnary {
  static constexpr const char* name = "exp2";
  static constexpr const char* about = "2 to the power of x.";
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return math::exp2(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return math::constant<T>(std::numbers::ln2) * math::exp2(x);
  }
  template <class T>
  static T second(T x) {
    return math::exp2(x) * (std::numbers::ln2 * std::numbers::ln2);
  }
};

struct Log2 : LibraryUnary {
  static constexpr const char* name = "log2";
  static constexpr const char* about = "The logarithm to base 2.";
  template <class T>
  static constexpr T value(T x) {
    return math::log2(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return 1 / (x * math::constant<T>(std::numbers::ln2));
  }
  template <class T>
  static T second(T x) {
    return math::power(x, -2) * -std::numbers::log2e;
  }
};

struct Log10 : LibraryUnary {
  static constexpr const char* name = "log10";
  static constexpr const char* about = "The logarithm to base 10.";
  template <class T>
  static constexpr T value(T x) {
    return math::log10(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return 1 / (x * math::constant<T>(std::numbers::ln10));
  }
  template <class T>
  static T second(T x) {
    return math::power(x, -2) * -std::numbers::log10e;
  }
};

struct Tan : LibraryUnary {
  static constexpr const char* name = "tan";
  static constexpr const char* about = "The tangent.";
  template <class T>
  static constexpr T value(T x) {
    return math::tan(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return 1 + math::tan(x) * math::tan(x);
  }
  template <class T>
  static T second(T x) {
    const T t = math::tan(x);
    return t * 2 * (math::square(t) + 1);
  }
};

struct Asin : LibraryUnary {
  static constexpr const char* name = "asin";
  static constexpr const char* about = "The angle whose sine is x.";
  template <class T>
  static constexpr T value(T x) {
    return math::asin(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return 1 / math::sqrt(1 - x * x);
  }
  template <class T>
  static T second(T x) {
    return x * math::power(1 - math::square(x), -1.5);
  }
};

struct Acos : LibraryUnary {
  static constexpr const char* name = "acos";
  static constexpr const char* about = "The angle whose cosine is x.";
  template <class T>
  static constexpr T value(T x) {
    return math::acos(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return -1 / math::sqrt(1 - x * x);
  }
  template <class T>
  static T second(T x) {
    return -Asin::second(x);
  }
};

struct Atan : LibraryUnary {
  static constexpr const char* name = "atan";
  static constexpr const char* about = "The angle whose tangent is x.";
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return math::atan(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return 1 / (1 + x * x);
  }
  template <class T>
  static T second(T x) {
    return x * -2 * math::power(math::square(x) + 1, -2);
  }
};

struct Sinh : LibraryUnary {
  static constexpr const char* name = "sinh";
  static constexpr const char* about = "The hyperbolic sine.";
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return math::sinh(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return math::cosh(x);
  }
  template <class T>
  static T second(T x) {
    return math::sinh(x);
  }
};

struct Cosh : LibraryUnary {
  static constexpr const char* name = "cosh";
  static constexpr const char* about = "The hyperbolic cosine.";
  template <class T>
  static constexpr T value(T x) {
    return math::cosh(x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return math::sinh(x);
  }
  template <class T>
  static T second(T x) {
    return math::cosh(x);
  }
};

struct LogSigmoid : LibraryUnary {
  static constexpr const char* name = "log_sigmoid";
  static constexpr const char* about = "log(sigmoid(x)).";
  static constexpr bool monotone = true;
  template <class T>
  static constexpr T value(T x) {
    return -math::softplus(-x);
  }
  template <class T>
  static constexpr T slope(T x) {
    return 1 / (1 + math::exp(x));
  }
  template <class T>
  static T second(T x) {
    const T s = math::sigmoid(x);
    return s * (s - 1);
  }
};

struct Mish : LibraryUnary {
  static constexpr const char* name = "mish";
  static constexpr const char* about = "x tanh(log(1 + exp(x))).";
  template <class T>
  static constexpr T value(T x) {
    return x * math::tanh(math::softplus(x));
  }
  template <class T>
  static constexpr T slope(T x) {
    const T t = math::tanh(math::softplus(x));
    return t + x * (1 - t * t) / (1 + math::exp(-x));
  }
  /// (1 - t^2) s (2 + x (1 - s) - 2 x t s) with t = tanh(log(1 + exp x)), s = sigmoid(x)
  template <class T>
  static T second(T x) {
    const T s = math::sigmoid(x);
    const T t = math::tanh(math::softplus(x));
    return (1 - math::square(t)) * s * (x * (1 - s - t * s * 2) + 2);
  }
};

#pragma clang fp contract(on)

/// The operators of one operand.
using UnaryFunctions =
    List<Neg, Abs, Square, Sign, Sqrt, Rsqrt, Reciprocal, Floor, Ceil, Round, Trunc, Frac, Exp,
         Exp2, Expm1, Log, Log2, Log10, Log1p, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Tanh,
         Erf, Sigmoid, LogSigmoid, Relu, Silu, Mish, Hardswish, Hardsigmoid>;

}  // namespace tessera::functions

// NOLINTEND(performance-unnecessary-value-param)
#pragma clang attribute pop
