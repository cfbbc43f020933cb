#pragma once
// What is known of some elements, for variances and logarithms of sums of exponentials. For sources
// of this folder only.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "shared/kernels/exp_difference.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels::states {

using simd::F64;
using simd::kLanes;

/// A vector of elements as doubles.
template <class T>
struct Wide {
  static constexpr std::int64_t kParts = kLanes<T> / 8;
  std::array<F64, kParts> parts;
};

template <class T>
[[gnu::always_inline]] inline Wide<T> wide(simd::Vector<T> x) {
  if constexpr (Wide<T>::kParts == 1) {
    return {{x}};
  } else {
    const simd::TwoF64 both = simd::to_double(x);
    return {{both.low, both.high}};
  }
}

/// Count, mean, and the sum of the squared distances to the mean.
struct Moments {
  double count = 0;
  double mean = 0;
  double squares = 0;

  /// Of both sets of elements (Chan, Golub and LeVeque, 1979).
  void join(const Moments& other) {
    if (other.count == 0) return;
    const double all = count + other.count;
    const double distance = other.mean - mean;
    mean += distance * (other.count / all);
    squares += other.squares + distance * distance * (count * other.count / all);
    count = all;
  }

  template <class T>
  [[gnu::always_inline]] static Moments of_run(const T* x, std::int64_t size) {
    constexpr std::int64_t kVectors = 4;  // so that no sum waits for the one before
    constexpr std::int64_t kStep = kVectors * kLanes<T>;
    constexpr std::int64_t kParts = Wide<T>::kParts;
    const std::int64_t whole = size / kStep * kStep;
    const auto total = [&](auto term) __attribute__((always_inline)) {
      F64 sum[kVectors * kParts] = {};
      for (std::int64_t i = 0; i < whole; i += kStep) {
#pragma unroll
        for (std::int64_t vector = 0; vector < kVectors; ++vector) {
          const Wide<T> value = wide<T>(simd::load(x + i + vector * kLanes<T>));
#pragma unroll
          for (std::int64_t part = 0; part < kParts; ++part)
            sum[vector * kParts + part] += term(value.parts.data()[part]);
        }
      }
      F64 all = sum[0];
#pragma unroll
      for (std::int64_t part = 1; part < kVectors * kParts; ++part) all += sum[part];
      return simd::sum_lanes(all);
    };
    double sum = total([](F64 v) __attribute__((always_inline)) { return v; });
    for (std::int64_t i = whole; i < size; ++i) sum += static_cast<double>(x[i]);
    Moments result{static_cast<double>(size), sum / static_cast<double>(size), 0};
    const double mean = result.mean;
    result.squares =
        total([mean](F64 v) __attribute__((always_inline)) { return (v - mean) * (v - mean); });
    for (std::int64_t i = whole; i < size; ++i) {
      const double distance = static_cast<double>(x[i]) - mean;
      result.squares += distance * distance;
    }
    return result;
  }
};

/// The largest element, and the sum of the exponentials of the distances to it: 0 of nothing, NaN
/// where an element is.
struct LogSum {
  double top = -std::numeric_limits<double>::infinity();
  double sum = 0;

  void join(const LogSum& other) {
    if (other.sum == 0) return;
    const double larger = std::max(top, other.top);
    // Equal tops, infinite ones too, need no factor.
    const auto share = [larger](const LogSum& one) {
      return one.top == larger ? one.sum : one.sum * std::exp(one.top - larger);
    };
    sum = sum == 0 ? share(other) : share(*this) + share(other);
    top = larger;
  }

  [[nodiscard]] double logarithm() const {
    return std::isinf(top) && sum == sum ? top : top + std::log(sum);
  }

  /// Where the largest element is infinite, distances to it do not exist.
  template <class T>
  static LogSum of_infinite(double top, const T* x, std::int64_t size) {
    LogSum result{top, top > 0 ? 1.0 : 0.0};
    for (std::int64_t i = 0; i < size; ++i) {
      const auto value = static_cast<double>(x[i]);
      if (value != value) result = {0, value};
    }
    return result;
  }

  template <class T>
  [[gnu::always_inline]] static LogSum of_run(const T* x, std::int64_t size) {
    using C = Compute<T>;
    using V = simd::Vector<T>;
    constexpr C kLowest = -std::numeric_limits<C>::infinity();
    constexpr std::int64_t kStep = 4 * kLanes<T>;  // so that nothing waits for the one before
    V tops[4];
    for (V& each : tops) each = V{} + kLowest;
    std::int64_t i = 0;
    for (; i + kStep <= size; i += kStep) {
#pragma unroll
      for (int chain = 0; chain < 4; ++chain)
        tops[chain] = simd::maximum(simd::load(x + i + chain * kLanes<T>), tops[chain]);
    }
    for (; i < size; i += kLanes<T>)
      tops[0] = simd::maximum(simd::load_some(x + i, size - i, kLowest), tops[0]);
    const C top = simd::max_lanes(
        simd::maximum(simd::maximum(tops[0], tops[1]), simd::maximum(tops[2], tops[3])));
    if (std::isinf(top)) return of_infinite(static_cast<double>(top), x, size);
    V sums[4] = {};
    for (i = 0; i + kStep <= size; i += kStep) {
#pragma unroll
      for (int chain = 0; chain < 4; ++chain) {
        const T* const at = x + i + chain * kLanes<T>;
        __builtin_prefetch(at + size);  // the run that is read afterwards
        sums[chain] += simd::exp_of_difference(simd::load(at) - top);
      }
    }
    for (; i < size; i += kLanes<T>)
      sums[0] += simd::exp_of_difference(simd::load_some(x + i, size - i, kLowest) - top);
    return {static_cast<double>(top),
            static_cast<double>(simd::sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3])))};
  }
};

}  // namespace tessera::kernels::states
