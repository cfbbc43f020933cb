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

/// Throws std::invalid_argument where there are results but nothing to reduce to them.
inline void require_elements(const char* message, const ReduceShape& shape) {
  if (shape.reduced == 0 && shape.outer * shape.inner > 0) throw std::invalid_argument(message);
}

template <class T>
using Plain = decltype(plain(T{}));

// Each reducer: the type it accumulates in, what nothing reduces to, an element as such a value,
// the combination of two of them, and how many chains of them a run of elements has. A sum's bits
// depend on the number of chains; the others have so many that no chain waits.

template <class T>
struct Sum {
  using Value = std::conditional_t<kIsFloating<T>, double, std::int64_t>;
  static constexpr int kChains = 16;
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
  static constexpr int kChains = 64;
  static Value start() {
    if constexpr (kIsFloating<T>) return -std::numeric_limits<Value>::infinity();
    return std::numeric_limits<Value>::lowest();
  }
  [[gnu::always_inline]] static Value of(T x) { return plain(x); }
  [[gnu::always_inline]] static Value join(Value a, Value b) { return a > b || a != a ? a : b; }
  /// Joins vectors of floats, in three instructions.
  template <class V>
  [[gnu::always_inline]] static V of_vector(V x) {
    return x;
  }
  template <class V>
  [[gnu::always_inline]] static V join_vectors(V a, V b) {
    const V larger = simd::maximum(a, b);  // b where either is NaN
    return a == a ? larger : a;
  }
  /// Is a more extreme than b? NaN is the most extreme. Without branches, so that loops over
  /// columns are vectors.
  [[gnu::always_inline]] static bool exceeds(Value a, Value b) {
    return (a > b) | ((a != a) & (b == b));
  }
};

template <class T>
struct Minimum : Maximum<T> {
  using Value = typename Maximum<T>::Value;
  static Value start() {
    if constexpr (kIsFloating<T>) return std::numeric_limits<Value>::infinity();
    return std::numeric_limits<Value>::max();
  }
  [[gnu::always_inline]] static Value join(Value a, Value b) { return a < b || a != a ? a : b; }
  template <class V>
  [[gnu::always_inline]] static V join_vectors(V a, V b) {
    const V smaller = simd::minimum(a, b);
    return a == a ? smaller : a;
  }
  [[gnu::always_inline]] static bool exceeds(Value a, Value b) {
    return (a < b) | ((a != a) & (b == b));
  }
};

template <class T>
struct All {
  using Value = std::int32_t;  // as wide as most elements: 0 or 1
  static constexpr int kChains = 64;
  static Value start() { return 1; }
  [[gnu::always_inline]] static Value of(T x) { return plain(x) != Plain<T>{} ? 1 : 0; }
  [[gnu::always_inline]] static Value join(Value a, Value b) { return a & b; }
};

template <class T>
struct Any : All<T> {
  static std::int32_t start() { return 0; }
  [[gnu::always_inline]] static std::int32_t join(std::int32_t a, std::int32_t b) { return a | b; }
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
struct Nonzeros : Sum<T> {
  [[gnu::always_inline]] static double of(T x) { return plain(x) != Plain<T>{} ? 1 : 0; }
};

/// The least magnitude of floating types.
template <class T>
struct MinimumAbs : Minimum<T> {
  [[gnu::always_inline]] static Plain<T> of(T x) { return std::abs(plain(x)); }
  template <class V>
  [[gnu::always_inline]] static V of_vector(V x) {
    return __builtin_elementwise_abs(x);
  }
};

/// The greatest magnitude of floating types.
template <class T>
struct MaximumAbs : Maximum<T> {
  static Plain<T> start() { return Plain<T>{0}; }
  [[gnu::always_inline]] static Plain<T> of(T x) { return MinimumAbs<T>::of(x); }
  template <class V>
  [[gnu::always_inline]] static V of_vector(V x) {
    return MinimumAbs<T>::of_vector(x);
  }
};

/// Reduces whole groups of kChains vectors of floats at the beginning of a run; returns how many
/// elements these are.
template <class R, class T>
[[gnu::always_inline]] inline std::int64_t reduce_vectors(const T* x, std::int64_t count,
                                                          typename R::Value& result) {
  using V = simd::Vector<T>;
  constexpr std::int64_t kChains = 8;
  constexpr std::int64_t kStep = kChains * simd::kLanes<T>;
  constexpr std::int64_t kAhead = 1024;  // elements
  const std::int64_t whole = count / kStep * kStep;
  V chains[kChains];
  for (V& chain : chains) chain = simd::splat<V>(R::start());
  for (std::int64_t i = 0; i < whole; i += kStep) {
#pragma unroll
    for (std::int64_t chain = 0; chain < kChains; ++chain) {
      const T* const at = x + i + chain * simd::kLanes<T>;
      __builtin_prefetch(at + kAhead);
      const V value = R::of_vector(simd::load(at));
      chains[chain] = R::join_vectors(chains[chain], value);
    }
  }
  V all = chains[0];
  for (std::int64_t chain = 1; chain < kChains; ++chain) all = R::join_vectors(all, chains[chain]);
  for (std::int64_t lane = 0; lane < simd::kLanes<T>; ++lane) result = R::join(result, all[lane]);
  return whole;
}

/// Reduces a contiguous run: in chains, then these in order, then what is left.
template <class R, class T>
typename R::Value reduce_run(const T* x, std::int64_t count) {
  using Value = typename R::Value;
  constexpr int kChains = R::kChains;
  Value result = R::start();
  simd::dispatch([&](auto) __attribute__((always_inline)) {
    std::int64_t i = 0;
    if constexpr (kIsFloating<T> && requires(simd::Vector<T> v) { R::join_vectors(v, v); }) {
      i = reduce_vectors<R>(x, count, result);
      for (; i < count; ++i) result = R::join(result, R::of(x[i]));
      return;
    }
    std::array<Value, kChains> chains;
    chains.fill(R::start());
    for (; i + kChains <= count; i += kChains) {
      for (int chain = 0; chain < kChains; ++chain) {
        Value& value = chains.data()[chain];
        value = R::join(value, R::of(x[i + chain]));
      }
    }
    constexpr int kJoined = kChains > 16 ? 16 : kChains;  // one after the other
    for (int chain = kJoined; chain < kChains; ++chain) {
      Value& value = chains.data()[chain % kJoined];
      value = R::join(value, chains.data()[chain]);
    }
    for (int chain = 0; chain < kJoined; ++chain) result = R::join(result, chains.data()[chain]);
    for (; i < count; ++i) result = R::join(result, R::of(x[i]));
  });
  return result;
}

}  // namespace tessera::kernels::reducers
