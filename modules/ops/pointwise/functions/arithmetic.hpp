#pragma once
// Arithmetic of two and three elements, of floating types and integers. A number may be in the
// place of the last operand. See Function in math.hpp.

#include <cstdint>
#include <tessera/math.hpp>
#include <type_traits>

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

struct Arithmetic : Function {
  static constexpr auto loop = Loop::elements;
  static constexpr auto takes = Takes::everything;
};

/// a + b; of bool: or.
struct Add : Arithmetic {
  template <class T>
  static constexpr T value(T a, T b) {
    if constexpr (math::is_boolean<T>) {
      return a || b;
    } else {
      using W = math::Wrapping<T>;
      return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
    }
  }
};

struct Sub : Arithmetic {
  static constexpr auto takes = Takes::numbers;
  template <class T>
  static constexpr T value(T a, T b) {
    using W = math::Wrapping<T>;
    return static_cast<T>(static_cast<W>(a) - static_cast<W>(b));
  }
};

/// a b; of bool: and.
struct Mul : Arithmetic {
  template <class T>
  static constexpr T value(T a, T b) {
    if constexpr (math::is_boolean<T>) {
      return a && b;
    } else {
      using W = math::Wrapping<T>;
      return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
    }
  }
};

/// a / b; of integers towards 0, and 0 where b is 0.
struct Div : Arithmetic {
  static constexpr auto integer_loop = Loop::library;
  static constexpr auto takes = Takes::numbers;
  template <class T>
  static constexpr T value(T a, T b) {
    if constexpr (math::is_floating<T>) {
      return a / b;
    } else {
      if (b == 0) return T{};
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) return Sub::value(T{}, a);  // the lowest value has no negative
      }
      return static_cast<T>(a / b);
    }
  }
};

/// NaN where an operand is NaN; of bool: or.
struct Maximum : Arithmetic {
  template <class T>
  static constexpr T value(T a, T b) {
    if constexpr (math::is_floating<T>) {
      return math::larger(a, b);
    } else {
      return a > b ? a : b;
    }
  }
};

/// NaN where an operand is NaN; of bool: and.
struct Minimum : Arithmetic {
  template <class T>
  static constexpr T value(T a, T b) {
    if constexpr (math::is_floating<T>) {
      return math::smaller(a, b);
    } else {
      return a < b ? a : b;
    }
  }
};

/// a + alpha b; of bool with alpha 1.
struct AddScaled : Arithmetic {
  template <class T>
  static constexpr T value(T a, T b, T alpha) {
    if constexpr (math::is_floating<T>) {
      return a + alpha * b;
    } else {
      return Add::value(a, Mul::value(alpha, b));
    }
  }
};

/// a - alpha b.
struct SubScaled : Arithmetic {
  static constexpr auto takes = Takes::numbers;
  template <class T>
  static constexpr T value(T a, T b, T alpha) {
    if constexpr (math::is_floating<T>) {
      return a + -alpha * b;
    } else {
      return Sub::value(a, Mul::value(alpha, b));
    }
  }
};

/// start + weight (end - start), from the end that is nearer, so that weight 1 gives the end
/// exactly.
struct Lerp : Arithmetic {
  static constexpr auto takes = Takes::floating;
  template <class T>
  static constexpr T value(T start, T end, T weight) {
    return weight < math::constant<T>(0.5) ? start + weight * (end - start)
                                           : end - (1 - weight) * (end - start);
  }
};

/// x + scale a b.
struct Addcmul : Arithmetic {
  static constexpr auto takes = Takes::floating;
  template <class T>
  static constexpr T value(T x, T a, T b, T scale) {
    return x + scale * a * b;
  }
};

/// x + scale a / b.
struct Addcdiv : Arithmetic {
  static constexpr auto takes = Takes::floating;
  template <class T>
  static constexpr T value(T x, T a, T b, T scale) {
    return x + scale * a / b;
  }
};

/// Limited to [low, high]. Its gradient at the bounds is 0.
struct Clamp : Arithmetic {
  template <class T>
  static constexpr T value(T x, T low, T high) {
    return Minimum::value(Maximum::value(x, low), high);
  }
  template <class T>
  static constexpr T gradient(T x, T grad, T low, T high) {
    return ((x <= low) | (x >= high)) ? T{} : grad;
  }
};

// ---- bit by bit, of bool and integers ----

struct BitwiseAnd : Arithmetic {
  static constexpr auto takes = Takes::bits;
  template <class T>
  static constexpr T value(T a, T b) {
    return static_cast<T>(a & b);
  }
};

struct BitwiseOr : Arithmetic {
  static constexpr auto takes = Takes::bits;
  template <class T>
  static constexpr T value(T a, T b) {
    return static_cast<T>(a | b);
  }
};

struct BitwiseXor : Arithmetic {
  static constexpr auto takes = Takes::bits;
  template <class T>
  static constexpr T value(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// ---- by the C library, one element after the other ----

// The kernels' loops have no fused instructions, so generated code must not have them either.
#pragma clang fp contract(off)

struct LibraryArithmetic : Function {
  static constexpr auto loop = Loop::library;
  static constexpr auto integer_loop = Loop::library;
  static constexpr auto takes = Takes::numbers;
};

/// a to the power of b; of integers by squaring, modulo the type's range; a negative exponent gives
/// 0 (1 for base 1).
struct Pow : LibraryArithmetic {
  template <class T>
  static constexpr T value(T base, T exponent) {
    if constexpr (math::is_floating<T>) {
      return math::pow(base, exponent);
    } else {
      if constexpr (std::is_signed_v<T>) {
        if (exponent < 0) {
          return base == 1 ? T{1} : (base == -1 ? (exponent % 2 == 0 ? T{1} : T{-1}) : T{0});
        }
      }
      std::uint64_t result = 1;
      auto square = static_cast<std::uint64_t>(base);
      for (auto rest = static_cast<std::uint64_t>(exponent); rest != 0; rest >>= 1) {
        if ((rest & 1) != 0) result *= square;
        square *= square;
      }
      return static_cast<T>(result);
    }
  }
};

/// The angle of the point (x, y).
struct Atan2 : LibraryArithmetic {
  static constexpr auto takes = Takes::floating;
  template <class T>
  static constexpr T value(T y, T x) {
    return math::atan2(y, x);
  }
};

/// The remainder of a / b with the quotient rounded towards 0; of integers 0 where b is 0.
struct Fmod : LibraryArithmetic {
  template <class T>
  static constexpr T value(T a, T b) {
    if constexpr (math::is_floating<T>) {
      return math::fmod(a, b);
    } else {
      if (b == 0) return T{};
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) return T{};  // the quotient of the lowest value is out of range
      }
      return static_cast<T>(a % b);
    }
  }
};

/// Remainder of the quotient that is rounded down: Python's definition, in which quotient and
/// remainder fit each other.
struct Remainder : LibraryArithmetic {
  template <class T>
  static constexpr T value(T a, T b) {
    const T rest = Fmod::value(a, b);
    const bool down = rest != 0 && (rest < 0) != (b < 0);
    return static_cast<T>(down ? rest + b : rest);
  }
};

/// That quotient.
struct FloorDivide : LibraryArithmetic {
  template <class T>
  static constexpr T value(T a, T b) {
    const T rest = Fmod::value(a, b);
    const bool down = rest != 0 && (rest < 0) != (b < 0);
    if constexpr (math::is_floating<T>) {
      if (b == 0) return a / b;
      const T quotient = (a - rest) / b - (down ? 1 : 0);
      if (quotient == 0) return math::copy_sign(T{}, a / b);
      const T floored = math::floor(quotient);
      return quotient - floored > math::constant<T>(0.5) ? floored + 1 : floored;
    } else {
      const T quotient = Div::value(a, b);
      return static_cast<T>(down ? quotient - 1 : quotient);
    }
  }
};

#pragma clang fp contract(on)

}  // namespace tessera::functions

#pragma clang attribute pop
