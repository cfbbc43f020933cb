#pragma once
// The states of many columns, to which rows are added. The columns' numbers are next to each other,
// so that what is computed of them is vectors. For sources of this folder only.

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "reduce/kernels/states.hpp"
#include "shared/kernels/simd_math.hpp"

namespace tessera::kernels::states {

inline constexpr std::int64_t kColumns = 1024;  // at most
inline constexpr std::int64_t kAhead = 8;       // rows

/// Calls use(vector, its elements in kRows rows) for the vectors of rows of `width` columns that
/// are `stride` elements apart. Meanwhile the same columns of rows that are `ahead` further on are
/// brought into the cache: where rows are pages apart, the machine does not do so by itself.
template <std::int64_t kRows, class T, class Use>
[[gnu::always_inline]] inline void each_of_rows(const T* x, std::int64_t width, std::int64_t stride,
                                                std::int64_t ahead, Use use) {
  for (std::int64_t i = 0; i < width; i += kLanes<T>) {
    simd::Vector<T> values[kRows];
#pragma unroll
    for (std::int64_t row = 0; row < kRows; ++row) {
      __builtin_prefetch(x + (row + ahead) * stride + i);
      values[row] = simd::load_some(x + row * stride + i, width - i);
    }
    use(i / kLanes<T>, values, std::integral_constant<std::int64_t, kRows>{});
  }
}

/// The same for all rows, a few at once, so that what they are added to is loaded and stored less
/// often.
template <class T, class Use>
[[gnu::always_inline]] inline void each_of_columns(const T* x, std::int64_t rows,
                                                   std::int64_t width, std::int64_t stride,
                                                   std::int64_t ahead, Use use) {
  constexpr std::int64_t kAtOnce = 4;
  std::int64_t row = 0;
  for (; row + kAtOnce <= rows; row += kAtOnce)
    each_of_rows<kAtOnce>(x + row * stride, width, stride, ahead, use);
  for (; row < rows; ++row) each_of_rows<1>(x + row * stride, width, stride, ahead, use);
}

template <class State, class T>
class Columns;

template <class T>
class Columns<Moments, T> {
 public:
  static constexpr std::int64_t kRun = 1 << 16;  // elements that are added at once

  explicit Columns(std::int64_t width)
      : width_(width), vectors_((width + kLanes<T> - 1) / kLanes<T>) {
    clear(means_);
    clear(squares_);
  }

  /// Distances are taken from the mean so far, which is as good as the mean of these rows: where it
  /// is far from that, what rounding loses is small beside the square of this distance. The mean of
  /// the first rows is found first.
  [[gnu::always_inline]] void add(const T* x, std::int64_t rows, std::int64_t stride) {
    const auto size = static_cast<double>(rows);
    if (count_ == 0) find_means(x, rows, stride);
    Numbers sums;
    Numbers squares;
    clear(sums);
    clear(squares);
    each_of_columns(x, rows, width_, stride, kAhead,
                    [&](std::int64_t vector, const simd::Vector<T>* values, auto number)
                        __attribute__((always_inline)) {
#pragma unroll
                          for (std::int64_t part = 0; part < kParts; ++part) {
                            const std::int64_t at = vector * kParts + part;
                            const F64 mean = means_.data()[at];
                            F64 sum = sums.data()[at];
                            F64 square = squares.data()[at];
#pragma unroll
                            for (std::int64_t row = 0; row < number(); ++row) {
                              const F64 distance = wide<T>(values[row]).parts.data()[part] - mean;
                              sum += distance;
                              square += distance * distance;
                            }
                            sums.data()[at] = sum;
                            squares.data()[at] = square;
                          }
                        });
    const double share = size / (count_ + size);
    for (std::int64_t at = 0; at < vectors_ * kParts; ++at) {
      const F64 distance = sums.data()[at] / size;
      const F64 own = squares.data()[at] - distance * sums.data()[at];
      means_.data()[at] += distance * share;
      squares_.data()[at] += (own < 0 ? F64{} : own) + distance * distance * (count_ * share);
    }
    count_ += size;
  }

  [[nodiscard]] Moments state(std::int64_t column) const {
    return {count_, means_.data()[column / 8][column % 8], squares_.data()[column / 8][column % 8]};
  }

 private:
  static constexpr std::int64_t kParts = Wide<T>::kParts;
  using Numbers = std::array<F64, kColumns / 8>;

  [[gnu::always_inline]] void clear(Numbers& numbers) const {
    for (std::int64_t at = 0; at < vectors_ * kParts; ++at) numbers.data()[at] = F64{};
  }

  [[gnu::always_inline]] void find_means(const T* x, std::int64_t rows, std::int64_t stride) {
    each_of_columns(x, rows, width_, stride, kAhead,
                    [&](std::int64_t vector, const simd::Vector<T>* values, auto number)
                        __attribute__((always_inline)) {
#pragma unroll
                          for (std::int64_t part = 0; part < kParts; ++part) {
                            F64 sum = means_.data()[vector * kParts + part];
#pragma unroll
                            for (std::int64_t row = 0; row < number(); ++row)
                              sum += wide<T>(values[row]).parts.data()[part];
                            means_.data()[vector * kParts + part] = sum;
                          }
                        });
    for (std::int64_t at = 0; at < vectors_ * kParts; ++at)
      means_.data()[at] /= static_cast<double>(rows);
  }

  std::int64_t width_;
  std::int64_t vectors_;
  double count_ = 0;
  Numbers means_;
  Numbers squares_;
};

template <class T>
class Columns<LogSum, T> {
 public:
  static constexpr std::int64_t kRun = 1 << 13;  // elements that are read twice

  explicit Columns(std::int64_t width)
      : width_(width), vectors_((width + kLanes<T> - 1) / kLanes<T>) {
    for (std::int64_t vector = 0; vector < vectors_; ++vector)
      tops_.data()[vector] = V{} - std::numeric_limits<C>::infinity();
    for (std::int64_t at = 0; at < vectors_ * kParts; ++at) sums_.data()[at] = F64{};
  }

  [[gnu::always_inline]] void add(const T* x, std::int64_t rows, std::int64_t stride) {
    std::array<V, kVectors> tops;
    std::array<V, kVectors> sums;
    for (std::int64_t vector = 0; vector < vectors_; ++vector) {
      tops.data()[vector] = tops_.data()[vector];
      sums.data()[vector] = V{};
    }
    each_of_columns(x, rows, width_, stride, 0,
                    [&](std::int64_t vector, const V* values, auto number)
                        __attribute__((always_inline)) {
                          V top = tops.data()[vector];
#pragma unroll
                          for (std::int64_t row = 0; row < number(); ++row)
                            top = simd::maximum(values[row], top);
                          tops.data()[vector] = top;
                        });
    each_of_columns(
        x, rows, width_, stride, rows,  // the run that is added afterwards

        [&](std::int64_t vector, const V* values, auto number) __attribute__((always_inline)) {
          // Distances to an infinite top do not exist. Those to 0, none above it, tell whether
          // there are elements beside -infinity, and NaN.
          const V top = tops.data()[vector];
          const V reference = simd::abs(top) == std::numeric_limits<C>::infinity() ? V{} : top;
          V sum = sums.data()[vector];
#pragma unroll
          for (std::int64_t row = 0; row < number(); ++row)
            sum += simd::exp_of_difference(simd::minimum(V{}, values[row] - reference));
          sums.data()[vector] = sum;
        });
    for (std::int64_t vector = 0; vector < vectors_; ++vector) {
      const V before = tops_.data()[vector];
      const V top = tops.data()[vector];
      tops_.data()[vector] = top;
      // Equal tops, infinite ones too, need no factor.
      const Wide<T> factor =
          wide<T>(before == top ? V{} + 1 : simd::exp_of_difference(before - top));
      const Wide<T> more = wide<T>(sums.data()[vector]);
#pragma unroll
      for (std::int64_t part = 0; part < kParts; ++part) {
        F64& sum = sums_.data()[vector * kParts + part];
        sum = sum * factor.parts.data()[part] + more.parts.data()[part];
      }
    }
  }

  [[nodiscard]] LogSum state(std::int64_t column) const {
    const C top = tops_.data()[column / kLanes<T>][column % kLanes<T>];
    return {static_cast<double>(top), sums_.data()[column / 8][column % 8]};
  }

 private:
  using C = Compute<T>;
  using V = simd::Vector<T>;
  static constexpr std::int64_t kParts = Wide<T>::kParts;
  static constexpr std::size_t kVectors = kColumns / kLanes<T>;

  std::int64_t width_;
  std::int64_t vectors_;
  std::array<V, kVectors> tops_;
  std::array<F64, kColumns / 8> sums_;
};

}  // namespace tessera::kernels::states
