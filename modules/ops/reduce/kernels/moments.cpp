#include "reduce/kernels/moments.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <vector>

#include "shared/kernels/exp_difference.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

using simd::F64;
using simd::kLanes;

constexpr std::int64_t kBlock = 1 << 15;  // elements that are one task where there are more
constexpr std::int64_t kRun = 1 << 11;    // elements that are read twice: they stay in the cache
constexpr std::int64_t kColumns = 1024;   // columns that are reduced together
constexpr std::int64_t kColumnRun = 1 << 16;  // elements of them: joining runs has divisions or exp
constexpr std::int64_t kGrain = 1 << 14;      // elements

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

  /// Of each of `width` (<= kColumns) columns of `rows` rows that are `stride` elements apart.
  template <class T>
  [[gnu::always_inline]] static void of_columns(const T* x, std::int64_t rows, std::int64_t width,
                                                std::int64_t stride, Moments* result) {
    constexpr std::int64_t kParts = Wide<T>::kParts;
    std::array<F64, kColumns / 8> means{};
    std::array<F64, kColumns / 8> squares{};
    const auto each = [&](auto use) __attribute__((always_inline)) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const T* row = x + r * stride;
        for (std::int64_t i = 0; i < width; i += kLanes<T>) {
          const Wide<T> value = wide<T>(simd::load_some(row + i, width - i));
#pragma unroll
          for (std::int64_t part = 0; part < kParts; ++part)
            use(i / 8 + part, value.parts.data()[part]);
        }
      }
    };
    each([&](std::int64_t at, F64 value)
             __attribute__((always_inline)) { means.data()[at] += value; });
    for (F64& mean : means) mean /= static_cast<double>(rows);
    each([&](std::int64_t at, F64 value) __attribute__((always_inline)) {
      const F64 distance = value - means.data()[at];
      squares.data()[at] += distance * distance;
    });
    for (std::int64_t i = 0; i < width; ++i) {
      result[i] = {static_cast<double>(rows), means.data()[i / 8][i % 8],
                   squares.data()[i / 8][i % 8]};
    }
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
  static LogSum of_infinite(double top, const T* x, std::int64_t size, std::int64_t stride) {
    LogSum result{top, top > 0 ? 1.0 : 0.0};
    for (std::int64_t i = 0; i < size; ++i) {
      const auto value = static_cast<double>(x[i * stride]);
      if (value != value) result = {0, value};
    }
    return result;
  }

  template <class T>
  [[gnu::always_inline]] static LogSum of_run(const T* x, std::int64_t size) {
    using C = Compute<T>;
    using V = simd::Vector<T>;
    constexpr C kLowest = -std::numeric_limits<C>::infinity();
    V tops[2] = {V{} + kLowest, V{} + kLowest};
    std::int64_t i = 0;
    for (; i + 2 * kLanes<T> <= size; i += 2 * kLanes<T>) {
      tops[0] = simd::maximum(simd::load(x + i), tops[0]);
      tops[1] = simd::maximum(simd::load(x + i + kLanes<T>), tops[1]);
    }
    for (; i < size; i += kLanes<T>)
      tops[0] = simd::maximum(simd::load_some(x + i, size - i, kLowest), tops[0]);
    const C top = simd::max_lanes(simd::maximum(tops[0], tops[1]));
    if (std::isinf(top)) return of_infinite(static_cast<double>(top), x, size, 1);
    V sums[2] = {};
    for (i = 0; i + 2 * kLanes<T> <= size; i += 2 * kLanes<T>) {
      sums[0] += simd::exp_of_difference(simd::load(x + i) - top);
      sums[1] += simd::exp_of_difference(simd::load(x + i + kLanes<T>) - top);
    }
    for (; i < size; i += kLanes<T>)
      sums[0] += simd::exp_of_difference(simd::load_some(x + i, size - i, kLowest) - top);
    return {static_cast<double>(top), static_cast<double>(simd::sum_lanes(sums[0] + sums[1]))};
  }

  template <class T>
  [[gnu::always_inline]] static void of_columns(const T* x, std::int64_t rows, std::int64_t width,
                                                std::int64_t stride, LogSum* result) {
    using C = Compute<T>;
    using V = simd::Vector<T>;
    constexpr C kLowest = -std::numeric_limits<C>::infinity();
    constexpr std::size_t kVectors = kColumns / kLanes<T>;
    std::array<V, kVectors> tops;
    std::array<V, kVectors> sums{};
    tops.fill(V{} + kLowest);
    const auto each = [&](auto use) __attribute__((always_inline)) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const T* row = x + r * stride;
        for (std::int64_t i = 0; i < width; i += kLanes<T>)
          use(i / kLanes<T>, simd::load_some(row + i, width - i));
      }
    };
    each([&](std::int64_t at, V value) __attribute__((always_inline)) {
      tops.data()[at] = simd::maximum(value, tops.data()[at]);
    });
    each([&](std::int64_t at, V value) __attribute__((always_inline)) {
      sums.data()[at] += simd::exp_of_difference(value - tops.data()[at]);
    });
    for (std::int64_t i = 0; i < width; ++i) {
      const C top = tops.data()[i / kLanes<T>][i % kLanes<T>];
      const C sum = sums.data()[i / kLanes<T>][i % kLanes<T>];
      result[i] = std::isinf(top) ? of_infinite(static_cast<double>(top), x + i, rows, stride)
                                  : LogSum{static_cast<double>(top), static_cast<double>(sum)};
    }
  }
};

/// y[o, i] = finish(the state of x[o, r, i] over r).
template <class State, class T, class Finish>
void reduce_rows(const ReduceShape& shape, const T* x, T* y, Finish finish) {
  const auto of_block = [](const T* from, std::int64_t size) {
    State state;
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t i = 0; i < size; i += kRun)
        state.join(State::template of_run<T>(from + i, std::min(kRun, size - i)));
    });
    return state;
  };
  const std::int64_t blocks = (shape.reduced + kBlock - 1) / kBlock;
  if (blocks <= 1) {
    parallel_for(0, shape.outer, 1 + kGrain / (shape.reduced + 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t o = begin; o < end; ++o)
                     y[o] = static_cast<T>(finish(of_block(x + o * shape.reduced, shape.reduced)));
                 });
    return;
  }
  std::vector<State> states(static_cast<std::size_t>(shape.outer * blocks));
  parallel_for(0, shape.outer * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t first = task % blocks * kBlock;
      states[static_cast<std::size_t>(task)] = of_block(x + task / blocks * shape.reduced + first,
                                                        std::min(kBlock, shape.reduced - first));
    }
  });
  for (std::int64_t o = 0; o < shape.outer; ++o) {
    State all;
    for (std::int64_t b = 0; b < blocks; ++b)
      all.join(states[static_cast<std::size_t>(o * blocks + b)]);
    y[o] = static_cast<T>(finish(all));
  }
}

template <class State, class T, class Finish>
void reduce_columns(const ReduceShape& shape, const T* x, T* y, Finish finish) {
  const std::int64_t pieces = (shape.inner + kColumns - 1) / kColumns;
  const std::int64_t width = std::min(kColumns, shape.inner);
  const std::int64_t rows = kColumnRun / width;                             // of a run
  const std::int64_t block = std::max(rows, kBlock / width / rows * rows);  // rows of a task
  const std::int64_t blocks = std::max<std::int64_t>(1, (shape.reduced + block - 1) / block);
  std::vector<State> states(
      blocks == 1 ? 0 : static_cast<std::size_t>(shape.outer * blocks * shape.inner));
  parallel_for(0, shape.outer * blocks * pieces,
               1 + kGrain / (std::min(block, shape.reduced) * width + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 std::array<State, kColumns> run;
                 std::array<State, kColumns> all;
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t column = task % pieces * kColumns;
                   const std::int64_t size = std::min(kColumns, shape.inner - column);
                   const std::int64_t outer = task / pieces / blocks;
                   const std::int64_t first = task / pieces % blocks * block;
                   const std::int64_t last = std::min(shape.reduced, first + block);
                   std::fill_n(all.data(), size, State{});
                   simd::dispatch([&](auto) __attribute__((always_inline)) {
                     for (std::int64_t r = first; r < last; r += rows) {
                       State::template of_columns<T>(
                           x + (outer * shape.reduced + r) * shape.inner + column,
                           std::min(rows, last - r), size, shape.inner, run.data());
                       for (std::int64_t i = 0; i < size; ++i) all.data()[i].join(run.data()[i]);
                     }
                   });
                   for (std::int64_t i = 0; i < size; ++i) {
                     if (blocks == 1) {
                       y[outer * shape.inner + column + i] = static_cast<T>(finish(all.data()[i]));
                     } else {
                       states.data()[task / pieces * shape.inner + column + i] = all.data()[i];
                     }
                   }
                 }
               });
  if (blocks == 1) return;
  parallel_for(
      0, shape.outer * shape.inner, 1 + kGrain / blocks / 8,
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t at = begin; at < end; ++at) {
          State all;
          for (std::int64_t b = 0; b < blocks; ++b) {
            all.join(
                states.data()[(at / shape.inner * blocks + b) * shape.inner + at % shape.inner]);
          }
          y[at] = static_cast<T>(finish(all));
        }
      });
}

template <class State, class Finish>
void reduce_states(const char* message, DType dtype, const ReduceShape& shape, const void* x,
                   void* y, Finish finish) {
  visit<FloatingTypes>(
      dtype,
      [&]<class T>(T) {
        if (shape.inner == 1) {
          reduce_rows<State>(shape, static_cast<const T*>(x), static_cast<T*>(y), finish);
        } else if (shape.inner > 1) {
          reduce_columns<State>(shape, static_cast<const T*>(x), static_cast<T*>(y), finish);
        }
      },
      [&] { throw std::invalid_argument(message); });
}

}  // namespace

void variance(DType dtype, const ReduceShape& shape, const void* x, double correction, bool root,
              void* y) {
  reduce_states<Moments>("variance: needs a floating type; cast the tensor first", dtype, shape, x,
                         y, [&](const Moments& all) {
                           const double value = all.squares / std::max(all.count - correction, 0.0);
                           return root ? std::sqrt(value) : value;
                         });
}

void log_sum_exp(DType dtype, const ReduceShape& shape, const void* x, void* y) {
  reduce_states<LogSum>("log_sum_exp: needs a floating type; cast the tensor first", dtype, shape,
                        x, y, [](const LogSum& all) { return all.logarithm(); });
}

}  // namespace tessera::kernels
