#pragma once
// State of a reduction of some elements, for variances and logarithms of sums of exponentials. For
// kernels' sources only.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "shared/kernels/simd.hpp"

namespace tessera::kernels::states {

using simd::F64;
using simd::kLanes;

/// Elements of a row that are brought into the cache ahead of those that are added.
inline constexpr std::int64_t kAhead = 1024;

/// A vector of elements as doubles.
template <class T>
struct WideLanes {
  static constexpr std::int64_t kParts = kLanes<T> / 8;
  std::array<F64, kParts> parts;
};

template <class T>
[[gnu::always_inline]] inline WideLanes<T> wide(simd::Vector<T> x) {
  if constexpr (WideLanes<T>::kParts == 1) {
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

  /// Becomes the moments of both sets of elements (Chan, Golub and LeVeque, 1979).
  void join(const Moments& other) {
    if (other.count == 0) return;
    const double all = count + other.count;
    const double distance = other.mean - mean;
    mean += distance * (other.count / all);
    squares += other.squares + distance * distance * (count * other.count / all);
    count = all;
  }

  /// Adds a run. Distances are taken from the mean so far, at first from that of the first
  /// elements: where it is far from the run's own, what rounding loses is small beside the square
  /// of this distance.
  template <class T>
  [[gnu::always_inline]] void add_run(const T* x, std::int64_t size) {
    constexpr std::int64_t kFirst = 8 * kLanes<T>;
    double from = mean;
    if (count == 0) {
      const std::int64_t first = std::min(size, kFirst);
      from = static_cast<double>(x[0]);
      from += sums_of_distances(x, first, from).plain / static_cast<double>(first);
    }
    const Sums sums = sums_of_distances(x, size, from);
    const double distance = sums.plain / static_cast<double>(size);
    const double own = sums.squares - distance * sums.plain;
    join({static_cast<double>(size), from + distance, own < 0 ? 0 : own});
  }

 private:
  struct Sums {
    double plain;
    double squares;
  };

  template <class T>
  [[gnu::always_inline]] static Sums sums_of_distances(const T* x, std::int64_t size, double from) {
    constexpr std::int64_t kVectors = 4;  // so that no sum waits for the one before
    constexpr std::int64_t kStep = kVectors * kLanes<T>;
    constexpr std::int64_t kParts = WideLanes<T>::kParts;
    F64 sums[kVectors * kParts] = {};
    F64 squares[kVectors * kParts] = {};
    std::int64_t i = 0;
    for (; i + kStep <= size; i += kStep) {
#pragma unroll
      for (std::int64_t vector = 0; vector < kVectors; ++vector) {
        const T* const at = x + i + vector * kLanes<T>;
        __builtin_prefetch(at + kAhead);
        const WideLanes<T> value = wide<T>(simd::load(at));
#pragma unroll
        for (std::int64_t part = 0; part < kParts; ++part) {
          const F64 distance = value.parts.data()[part] - from;
          sums[vector * kParts + part] += distance;
          squares[vector * kParts + part] += distance * distance;
        }
      }
    }
#pragma unroll
    for (std::int64_t part = 1; part < kVectors * kParts; ++part) {
      sums[0] += sums[part];
      squares[0] += squares[part];
    }
    Sums result{simd::sum_lanes(sums[0]), simd::sum_lanes(squares[0])};
    for (; i < size; ++i) {
      const double distance = static_cast<double>(x[i]) - from;
      result.plain += distance;
      result.squares += distance * distance;
    }
    return result;
  }
};

/// A reference near the largest element, and the sum of the exponentials of the distances to it: 0
/// of nothing, NaN where an element is. An infinite largest element is the reference.
struct LogSum {
  double reference = -std::numeric_limits<double>::infinity();
  double sum = 0;

  /// The largest element may be this far above the reference: exponentials do not overflow, and
  /// what matters of the sum does not underflow.
  static constexpr float kReach = 40;

  void join(const LogSum& other) {
    if (other.sum == 0) return;
    const double larger = std::max(reference, other.reference);
    // Equal references, infinite ones too, need no factor.
    const auto share = [larger](const LogSum& one) {
      return one.reference == larger ? one.sum : one.sum * std::exp(one.reference - larger);
    };
    sum = sum == 0 ? share(other) : share(*this) + share(other);
    reference = larger;
  }

  [[nodiscard]] double logarithm() const {
    return std::isinf(reference) && sum == sum ? reference : reference + std::log(sum);
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

  /// Sums exponentials of the distances to a reference; finds the largest element meanwhile.
  template <class T>
  [[gnu::always_inline]] static double sum_near(const T* x, std::int64_t size, Compute<T> reference,
                                                Compute<T>& top) {
    using C = Compute<T>;
    using V = simd::Vector<T>;
    constexpr C kLowest = -std::numeric_limits<C>::infinity();
    constexpr std::int64_t kStep = 4 * kLanes<T>;  // so that nothing waits for the one before
    V tops[4];
    for (V& each : tops) each = simd::splat<V>(kLowest);
    V sums[4] = {};
    const auto add = [&](int chain, V value) __attribute__((always_inline)) {
      tops[chain] = simd::maximum(value, tops[chain]);
      sums[chain] += simd::exp_nonpositive(value - reference);
    };
    std::int64_t i = 0;
    for (; i + kStep <= size; i += kStep) {
#pragma unroll
      for (int chain = 0; chain < 4; ++chain) {
        const T* const at = x + i + chain * kLanes<T>;
        __builtin_prefetch(at + kAhead);
        add(chain, simd::load(at));
      }
    }
    for (; i < size; i += kLanes<T>) add(0, simd::load_some(x + i, size - i, kLowest));
    top = simd::max_lanes(
        simd::maximum(simd::maximum(tops[0], tops[1]), simd::maximum(tops[2], tops[3])));
    return static_cast<double>(simd::sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3])));
  }

  /// Adds a run. The first element of all is the reference, until a run has an element far above
  /// it: then that run's largest element is, and the run is summed again. Returns the run's largest
  /// element.
  template <class T>
  [[gnu::always_inline]] Compute<T> add_run(const T* x, std::int64_t size) {
    using C = Compute<T>;
    C near = sum > 0 ? static_cast<C>(reference) : static_cast<C>(x[0]);
    if (!(std::abs(near) < std::numeric_limits<C>::infinity())) near = 0;
    C top = 0;
    LogSum run;
    run.sum = sum_near(x, size, near, top);
    run.reference = static_cast<double>(near);
    const C distance = top - near;  // far below it, a run matters only where nothing was added yet
    if (!(distance <= C{kReach} && (distance >= -C{kReach} || sum > 0))) {
      if (std::isinf(top)) {
        run = of_infinite(static_cast<double>(top), x, size);
      } else {
        near = top;
        run.sum = sum_near(x, size, near, top);
        run.reference = static_cast<double>(near);
      }
    }
    join(run);
    return top;
  }
};

}  // namespace tessera::kernels::states
