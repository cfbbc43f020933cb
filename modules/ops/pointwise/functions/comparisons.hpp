#pragma once
// Truths of one and two elements, of all types, and what they choose. A number may be in the place
// of the last operand. See Function in math.hpp.

#include <limits>
#include <tessera/math.hpp>

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// A function whose result has the type of its operands.
struct Choice : Function {
  static constexpr auto loop = Loop::elements;
  static constexpr auto takes = Takes::everything;
};

struct Comparison : Choice {
  static constexpr bool is_truth = true;
};

struct Equal : Comparison {
  template <class T>
  static constexpr auto holds(T a, T b) {
    return a == b;
  }
};

struct NotEqual : Comparison {
  template <class T>
  static constexpr auto holds(T a, T b) {
    return a != b;
  }
};

struct Less : Comparison {
  template <class T>
  static constexpr auto holds(T a, T b) {
    return a < b;
  }
};

struct LessEqual : Comparison {
  template <class T>
  static constexpr auto holds(T a, T b) {
    return a <= b;
  }
};

struct Greater : Comparison {
  template <class T>
  static constexpr auto holds(T a, T b) {
    return a > b;
  }
};

struct GreaterEqual : Comparison {
  template <class T>
  static constexpr auto holds(T a, T b) {
    return a >= b;
  }
};

// Every element but 0 is true.

struct LogicalAnd : Comparison {
  template <class T>
  static constexpr auto holds(T a, T b) {
    return (a != T{}) & (b != T{});
  }
};

struct LogicalOr : Comparison {
  template <class T>
  static constexpr auto holds(T a, T b) {
    return (a != T{}) | (b != T{});
  }
};

struct LogicalXor : Comparison {
  template <class T>
  static constexpr auto holds(T a, T b) {
    return (a != T{}) ^ (b != T{});
  }
};

struct LogicalNot : Comparison {
  template <class T>
  static constexpr auto holds(T a) {
    return a == T{};
  }
};

struct IsNan : Comparison {
  template <class T>
  static constexpr auto holds(T a) {
    return a != a;
  }
};

/// No integer is infinite.
struct IsInfinite : Comparison {
  template <class T>
  static constexpr auto holds(T a) {
    if constexpr (math::is_floating<T>) {
      return math::abs(a) == math::constant<T>(std::numeric_limits<double>::infinity());
    } else {
      return false;
    }
  }
};

/// Neither NaN nor infinite.
struct IsFinite : Comparison {
  template <class T>
  static constexpr auto holds(T a) {
    if constexpr (math::is_floating<T>) {
      return math::abs(a) < math::constant<T>(std::numeric_limits<double>::infinity());
    } else {
      return true;
    }
  }
};

/// a where the mask is true, else b.
struct Where : Choice {
  template <class Mask, class T>
  static constexpr T value(Mask mask, T a, T b) {
    return mask != Mask{} ? a : b;
  }
};

/// x where the mask is false, else a number.
struct MaskedFill : Choice {
  template <class Mask, class T>
  static constexpr T value(T x, Mask mask, T number) {
    return Where::value(mask, number, x);
  }
};

/// x where the mask is false, else 0.
struct MaskedZero : Choice {
  template <class Mask, class T>
  static constexpr T value(T x, Mask mask) {
    return Where::value(mask, T{}, x);
  }
};

/// x itself: what a cast is before it is rounded.
struct Identity : Choice {
  template <class T>
  static constexpr T value(T x) {
    return x;
  }
};

}  // namespace tessera::functions

#pragma clang attribute pop
