#pragma once
// One row of each normalisation: of the kernels, and of generated code (Element::of_rows).
// Include from .cpp files only.

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "shared/kernels/simd.hpp"

namespace tessera::kernels {

/// Where nothing else is asked for, results go into the caches.
struct StoreInCache {
  template <class T>
  [[gnu::always_inline]] void operator()(T* pointer, std::int64_t count,
                                         simd::Vector<T> value) const {
    simd::store_some(pointer, count, value);
  }
};

/// Takes the place of a row that is read afterwards where there is none.
struct NoNextRow {
  [[gnu::always_inline]] void operator()(std::int64_t /*at*/) const {}
};
/// The row that is read afterwards is brought into the cache meanwhile.
template <class T>
struct NextRow {
  const T* row;
  [[gnu::always_inline]] void operator()(std::int64_t at) const { __builtin_prefetch(row + at); }
};

template <class T>
[[gnu::always_inline]] inline simd::Vector<T> weight_at(const T* weight, std::int64_t i,
                                                        std::int64_t n) {
  return weight == nullptr ? simd::Vector<T>{} + 1 : simd::load_some(weight + i, n - i);
}

/// Sums term(i) over the vectors of a row, in four chains.
template <class T, class Term>
[[gnu::always_inline]] inline Compute<T> row_sum(std::int64_t n, Term term) {
  using simd::kLanes;
  simd::Vector<T> sum[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * kLanes<T> <= n; i += 4 * kLanes<T>) {
#pragma unroll
    for (int chain = 0; chain < 4; ++chain) sum[chain] += term(i + chain * kLanes<T>);
  }
  for (; i < n; i += kLanes<T>) sum[0] += term(i);
  return simd::sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/// Calls use(chain, place, elements from there on) for the vectors of a row, in four chains, so
/// that no maximum or sum waits for the one before.
template <class T, class Use>
[[gnu::always_inline]] inline void each_vector_of_row(std::int64_t n, Use use) {
  using simd::kLanes;
  std::int64_t i = 0;
  for (; i + 4 * kLanes<T> <= n; i += 4 * kLanes<T>) {
#pragma unroll
    for (int chain = 0; chain < 4; ++chain) use(chain, i + chain * kLanes<T>, kLanes<T>);
  }
  for (; i < n; i += kLanes<T>) use(0, i, n - i);
}

template <class T>
[[gnu::always_inline]] inline Compute<T> row_maximum(std::int64_t n, const T* x) {
  constexpr auto kLowest = -std::numeric_limits<Compute<T>>::infinity();
  simd::Vector<T> tops[4];
  for (auto& top : tops) top = simd::Vector<T>{} + kLowest;
  each_vector_of_row<T>(
      n, [&](int chain, std::int64_t i, std::int64_t rest) __attribute__((always_inline)) {
        tops[chain] = simd::maximum(simd::load_some(x + i, rest, kLowest), tops[chain]);
      });
  return simd::max_lanes(
      simd::maximum(simd::maximum(tops[0], tops[1]), simd::maximum(tops[2], tops[3])));
}

/// The sum of exp(x - top) over a row; use(place, rest, the exponentials) may keep them.
template <class T, class Next, class Use>
[[gnu::always_inline]] inline Compute<T> sum_of_exponentials(std::int64_t n, const T* x,
                                                             Compute<T> top, Next next, Use use) {
  simd::Vector<T> sums[4] = {};
  each_vector_of_row<T>(
      n, [&](int chain, std::int64_t i, std::int64_t rest) __attribute__((always_inline)) {
        next(i);
        const auto value = simd::exp_nonpositive(
            simd::load_some(x + i, rest, -std::numeric_limits<Compute<T>>::infinity()) - top);
        use(i, rest, value);
        sums[chain] += value;
      });
  return simd::sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace tessera::kernels

namespace tessera::functions {

using kernels::Compute;
using kernels::NoNextRow;
using kernels::StoreInCache;
namespace simd = kernels::simd;

/// Defaults of a function of rows (see Element in op.cppm).
struct Rows {
  static constexpr std::uint32_t whole = 0;
  static constexpr std::uint32_t sums = 0;
  static constexpr bool scratch = false;
};

struct RmsNorm : Rows {
  static constexpr std::uint32_t whole = 0b10;
  template <class T, class Store = StoreInCache, class Next = NoNextRow>
  [[gnu::always_inline]] static void row(std::int64_t n, const T* x, const T* weight, double eps,
                                         T* y, Compute<T>* rstd, const Store& store = {},
                                         Next next = {}) {
    using C = Compute<T>;
    using simd::load_some;
    const C squares = kernels::row_sum<T>(n, [&](std::int64_t i) __attribute__((always_inline)) {
      const auto value = load_some(x + i, n - i);
      return value * value;
    });
    const C factor = C{1} / std::sqrt(squares / static_cast<C>(n) + static_cast<C>(eps));
    *rstd = factor;
    for (std::int64_t i = 0; i < n; i += simd::kLanes<T>) {
      next(i);
      store(y + i, n - i, load_some(x + i, n - i) * factor * kernels::weight_at(weight, i, n));
    }
  }
};

/// Adds the row's part of dweight to sums, where there are any.
struct RmsNormBackward : Rows {
  static constexpr std::uint32_t whole = 0b100;
  static constexpr std::uint32_t sums = 0b10;
  template <class T>
  [[gnu::always_inline]] static void row(std::int64_t n, const T* dy, const T* x, const T* weight,
                                         const Compute<T>* rstd, T* dx, Compute<T>* weight_sums) {
    using C = Compute<T>;
    using simd::load_some;
    using simd::store_some;
    const C factor = *rstd;
    const C dot = kernels::row_sum<T>(n, [&](std::int64_t i) __attribute__((always_inline)) {
      return load_some(dy + i, n - i) * kernels::weight_at(weight, i, n) * load_some(x + i, n - i);
    });
    const C mean = dot * factor / static_cast<C>(n);
    for (std::int64_t i = 0; i < n; i += simd::kLanes<T>) {
      const std::int64_t rest = n - i;
      const auto gradient = load_some(dy + i, rest);
      const auto normal = load_some(x + i, rest) * factor;
      if (weight_sums != nullptr)
        store_some(weight_sums + i, rest, load_some(weight_sums + i, rest) + gradient * normal);
      store_some(dx + i, rest,
                 (gradient * kernels::weight_at(weight, i, n) - normal * mean) * factor);
    }
  }
};

struct LayerNorm : Rows {
  static constexpr std::uint32_t whole = 0b110;
  template <class T, class Store = StoreInCache, class Next = NoNextRow>
  [[gnu::always_inline]] static void row(std::int64_t n, const T* x, const T* weight, const T* bias,
                                         double eps, T* y, Compute<T>* mean, Compute<T>* rstd,
                                         const Store& store = {}, Next next = {}) {
    using C = Compute<T>;
    using simd::load_some;
    const C sum = kernels::row_sum<T>(
        n, [&](std::int64_t i) __attribute__((always_inline)) { return load_some(x + i, n - i); });
    const C center = sum / static_cast<C>(n);
    // The tail's spare lanes hold the mean, so that they add nothing.
    const C squares = kernels::row_sum<T>(n, [&](std::int64_t i) __attribute__((always_inline)) {
      const auto value = load_some(x + i, n - i, center) - center;
      return value * value;
    });
    const C factor = C{1} / std::sqrt(squares / static_cast<C>(n) + static_cast<C>(eps));
    *mean = center;
    *rstd = factor;
    for (std::int64_t i = 0; i < n; i += simd::kLanes<T>) {
      next(i);
      auto value = (load_some(x + i, n - i) - center) * factor * kernels::weight_at(weight, i, n);
      if (bias != nullptr) value += load_some(bias + i, n - i);
      store(y + i, n - i, value);
    }
  }
};

/// Adds the row's parts of dweight and dbias to sums, where there are any.
struct LayerNormBackward : Rows {
  static constexpr std::uint32_t whole = 0b100;
  static constexpr std::uint32_t sums = 0b110;
  template <class T>
  [[gnu::always_inline]] static void row(std::int64_t n, const T* dy, const T* x, const T* weight,
                                         const Compute<T>* mean, const Compute<T>* rstd, T* dx,
                                         Compute<T>* weight_sums, Compute<T>* bias_sums) {
    using C = Compute<T>;
    using simd::load_some;
    using simd::store_some;
    const C center = *mean;
    const C factor = *rstd;
    const C sum = kernels::row_sum<T>(n, [&](std::int64_t i) __attribute__((always_inline)) {
      return load_some(dy + i, n - i) * kernels::weight_at(weight, i, n);
    });
    const C dot = kernels::row_sum<T>(n, [&](std::int64_t i) __attribute__((always_inline)) {
      return load_some(dy + i, n - i) * kernels::weight_at(weight, i, n) *
             (load_some(x + i, n - i) - center);
    });
    const C mean_gradient = sum / static_cast<C>(n);
    const C mean_dot = dot * factor / static_cast<C>(n);
    for (std::int64_t i = 0; i < n; i += simd::kLanes<T>) {
      const std::int64_t rest = n - i;
      const auto gradient = load_some(dy + i, rest);
      const auto normal = (load_some(x + i, rest) - center) * factor;
      if (weight_sums != nullptr) {
        store_some(weight_sums + i, rest, load_some(weight_sums + i, rest) + gradient * normal);
      }
      if (bias_sums != nullptr) {
        store_some(bias_sums + i, rest, load_some(bias_sums + i, rest) + gradient);
      }
      const auto result =
          (gradient * kernels::weight_at(weight, i, n) - mean_gradient - normal * mean_dot) *
          factor;
      store_some(dx + i, rest, result);
    }
  }
};

/// `values`: n of them, for the exponentials until their sum is known; they may be y.
struct Softmax : Rows {
  static constexpr bool scratch = true;
  template <class T, class Store = StoreInCache, class Next = NoNextRow>
  [[gnu::always_inline]] static void row(std::int64_t n, const T* x, T* y, Compute<T>* values,
                                         const Store& store = {}, Next next = {}) {
    using C = Compute<T>;
    const C sum = kernels::sum_of_exponentials(
        n, x, kernels::row_maximum(n, x), next,
        [&](std::int64_t i, std::int64_t rest, simd::Vector<T> value)
            __attribute__((always_inline)) { simd::store_some(values + i, rest, value); });
    const C factor = C{1} / sum;
    kernels::each_vector_of_row<T>(
        n, [&](int, std::int64_t i, std::int64_t rest) __attribute__((always_inline)) {
          store(y + i, rest, simd::load_some(values + i, rest) * factor);
        });
  }
};

struct SoftmaxBackward : Rows {
  template <class T>
  [[gnu::always_inline]] static void row(std::int64_t n, const T* dy, const T* y, T* dx) {
    using simd::kLanes;
    using simd::load_some;
    simd::Vector<T> products = {};
    for (std::int64_t i = 0; i < n; i += kLanes<T>) {
      products += load_some(dy + i, n - i) * load_some(y + i, n - i);
    }
    const auto dot = simd::sum_lanes(products);
    for (std::int64_t i = 0; i < n; i += kLanes<T>) {
      const auto value = load_some(y + i, n - i) * (load_some(dy + i, n - i) - dot);
      simd::store_some(dx + i, n - i, value);
    }
  }
};

struct LogSoftmax : Rows {
  template <class T, class Store = StoreInCache, class Next = NoNextRow>
  [[gnu::always_inline]] static void row(std::int64_t n, const T* x, T* y, const Store& store = {},
                                         Next next = {}) {
    using C = Compute<T>;
    const C top = kernels::row_maximum(n, x);
    const C log_sum = std::log(kernels::sum_of_exponentials(
        n, x, top, next, [](std::int64_t, std::int64_t, simd::Vector<T>) {}));
    kernels::each_vector_of_row<T>(
        n, [&](int, std::int64_t i, std::int64_t rest) __attribute__((always_inline)) {
          store(y + i, rest, simd::load_some(x + i, rest) - top - log_sum);
        });
  }
};

struct LogSoftmaxBackward : Rows {
  template <class T>
  [[gnu::always_inline]] static void row(std::int64_t n, const T* dy, const T* y, T* dx) {
    using simd::kLanes;
    using simd::load_some;
    simd::Vector<T> lanes = {};
    for (std::int64_t i = 0; i < n; i += kLanes<T>) lanes += load_some(dy + i, n - i);
    const auto sum = simd::sum_lanes(lanes);
    for (std::int64_t i = 0; i < n; i += kLanes<T>) {
      const auto value = load_some(dy + i, n - i) - simd::exp(load_some(y + i, n - i)) * sum;
      simd::store_some(dx + i, n - i, value);
    }
  }
};

}  // namespace tessera::functions
