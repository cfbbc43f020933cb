#pragma once
// Reducers, and the reduction of adjacent elements. For sources of this folder only.

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "reduce/kernels/reduce.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels::reducers {

/// Elements that are reduced on their own where there are more.
inline constexpr std::int64_t kBlock = 1 << 16;
inline constexpr int kChains = 16;

/// Throws std::invalid_argument where there are results but nothing to reduce to them.
inline void require_elements(const char* message, const ReduceShape& shape) {
  if (shape.reduced == 0 && shape.outer * shape.inner > 0) throw std::invalid_argument(message);
}

template <class T>
using Plain = decltype(plain(T{}));

// Each reducer: the type it accumulates in, what nothing reduces to, an element as such a value,
// and the combination of two of them.

template <class T>
struct Sum {
  using Value = std::conditional_t<kIsFloating<T>, double, std::int64_t>;
  static Value start() { return Value{0}; }
  [[gnu::always_inline]] static Value of(T x) { return static_cast<Value>(x); }
  [[gnu::always_inline]] static Value join(Value a, Value b) { return a + b; }
};

template <class T>
struct Product : Sum<T> {
  using Value = typename Sum<T>::Value;
  static Value start() { return Value{1}; }
  [[gnu::always_inline]] static Value join(Value a, Value b) { return a * b; }
};

template <class T>
struct Maximum {
  using Value = Plain<T>;
  static Value start() {
    if constexpr (kIsFloating<T>) return -std::numeric_limits<Value>::infinity();
    return std::numeric_limits<Value>::lowest();
  }
  [[gnu::always_inline]] static Value of(T x) { return plain(x); }
  [[gnu::always_inline]] static Value join(Value a, Value b) { return a > b || a != a ? a : b; }
};

template <class T>
struct Minimum : Maximum<T> {
  using Value = typename Maximum<T>::Value;
  static Value start() {
    if constexpr (kIsFloating<T>) return std::numeric_limits<Value>::infinity();
    return std::numeric_limits<Value>::max();
  }
  [[gnu::always_inline]] static Value join(Value a, Value b) { return a < b || a != a ? a : b; }
};

template <class T>
struct All {
  using Value = bool;
  static Value start() { return true; }
  [[gnu::always_inline]] static Value of(T x) { return plain(x) != Plain<T>{}; }
  [[gnu::always_inline]] static Value join(Value a, Value b) { return a && b; }
};

template <class T>
struct Any : All<T> {
  static bool start() { return false; }
  [[gnu::always_inline]] static bool join(bool a, bool b) { return a || b; }
};

template <class T>
struct Squares : Sum<T> {
  [[gnu::always_inline]] static double of(T x) {
    const auto value = static_cast<double>(x);
    return value * value;
  }
};

template <class T>
struct Absolutes : Sum<T> {
  [[gnu::always_inline]] static double of(T x) { return std::abs(static_cast<double>(x)); }
};

template <class T>
struct MaximumAbs : Maximum<T> {
  using Value = typename Maximum<T>::Value;
  static Value start() { return Value{0}; }
  [[gnu::always_inline]] static Value of(T x) {
    const Value value = plain(x);
    return value < Value{0} ? -value : value;
  }
};

/// Reduces a contiguous run: in 16 chains, then these in order, then what is left.
template <class R, class T>
typename R::Value reduce_run(const T* x, std::int64_t count) {
  using Value = typename R::Value;
  std::array<Value, kChains> chains;
  chains.fill(R::start());
  Value result = R::start();
  simd::dispatch([&](auto) __attribute__((always_inline)) {
    std::int64_t i = 0;
    for (; i + kChains <= count; i += kChains) {
      for (int chain = 0; chain < kChains; ++chain) {
        Value& value = chains.data()[chain];
        value = R::join(value, R::of(x[i + chain]));
      }
    }
    for (int chain = 0; chain < kChains; ++chain) result = R::join(result, chains.data()[chain]);
    for (; i < count; ++i) result = R::join(result, R::of(x[i]));
  });
  return result;
}

}  // namespace tessera::kernels::reducers
