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

inline constexpr std::int64_t kColumns = 512;  // at most
inline constexpr std::int64_t kRowsAhead = 8;

/// Calls use(vector, its elements in kRows rows) for the vectors of rows of `width` columns that
/// are `stride` elements apart. Meanwhile the same columns of rows that are `ahead` further on are
/// brought into the cache: where rows are pages apart, the machine does not do so by itself.
template <std::int64_t kRows, class T, class Use>
[[gnu::always_inline]] inline void each_of_rows(const T* x, std::int64_t width, std::int64_t stride,
                                                std::int64_t ahead, Use use) {
  constexpr std::integral_constant<std::int64_t, kRows> number;
  simd::Vector<T> values[kRows];
  std::int64_t i = 0;
  for (; i + kLanes<T> <= width; i += kLanes<T>) {
#pragma unroll
    for (std::int64_t row = 0; row < kRows; ++row) {
      __builtin_prefetch(x + (row + ahead) * stride + i);
      values[row] = simd::load(x + row * stride + i);
    }
    use(i / kLanes<T>, values, number);
  }
  if (i == width) return;
  for (std::int64_t row = 0; row < kRows; ++row)
    values[row] = simd::load_partial(x + row * stride + i, width - i);
  use(i / kLanes<T>, values, number);
}

/// Adds all rows, a few at once, so that what they are added to is loaded and stored less
/// often.
template <std::int64_t kAtOnce, class T, class Use>
[[gnu::always_inline]] inline void each_of_columns(const T* x, std::int64_t rows,
                                                   std::int64_t width, std::int64_t stride,
                                                   std::int64_t ahead, Use use) {
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
  static constexpr std::int64_t kFirst = 8;      // rows

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
    if (count_ == 0) find_means(x, std::min(rows, kFirst), stride);
    Numbers sums;
    Numbers squares;
    clear(sums);
    clear(squares);
    each_of_columns<4>(x, rows, width_, stride, kRowsAhead,
                       [&](std::int64_t vector, const simd::Vector<T>* values,
                           auto number) __attribute__((always_inline)) {
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
  static constexpr std::int64_t kParts = WideLanes<T>::kParts;
  using Numbers = std::array<F64, kColumns / 8>;

  [[gnu::always_inline]] void clear(Numbers& numbers) const {
    for (std::int64_t at = 0; at < vectors_ * kParts; ++at) numbers.data()[at] = F64{};
  }

  [[gnu::always_inline]] void find_means(const T* x, std::int64_t rows, std::int64_t stride) {
    each_of_columns<4>(x, rows, width_, stride, kRowsAhead,
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
  static constexpr std::int64_t kRun = 1 << 15;  // elements that are added at once

  explicit Columns(std::int64_t width)
      : width_(width), vectors_((width + kLanes<T> - 1) / kLanes<T>) {
    for (std::int64_t at = 0; at < vectors_ * kParts; ++at) sums_.data()[at] = F64{};
    for (std::int64_t vector = 0; vector < vectors_; ++vector) added_.data()[vector] = Mask{};
  }

  /// The first row is the reference. A column whose largest element is far from it is added again,
  /// on its own.
  [[gnu::always_inline]] void add(const T* x, std::int64_t rows, std::int64_t stride) {
    if (!started_) start(x);
    std::array<V, kVectors> tops;
    std::array<V, kVectors> sums;
    for (std::int64_t vector = 0; vector < vectors_; ++vector) {
      tops.data()[vector] = V{} - kInfinity;
      sums.data()[vector] = V{};
    }
    each_of_columns<4>(x, rows, width_, stride, kRowsAhead,
                       [&](std::int64_t vector, const V* values, auto number)
                           __attribute__((always_inline)) {
                             const V reference = references_.data()[vector];
                             V top = tops.data()[vector];
                             V sum = sums.data()[vector];
#pragma unroll
                             for (std::int64_t row = 0; row < number(); ++row) {
                               top = simd::maximum(values[row], top);
                               sum += simd::exp_nonpositive(values[row] - reference);
                             }
                             tops.data()[vector] = top;
                             sums.data()[vector] = sum;
                           });
    for (std::int64_t vector = 0; vector < vectors_; ++vector) {
      const V distance = tops.data()[vector] - references_.data()[vector];
      // A value far below matters only where nothing was added yet, and -infinity nowhere.
      const Mask is_nothing = tops.data()[vector] == -kInfinity;
      const Mask near =
          ((distance <= kReach) & ((distance >= -kReach) | added_.data()[vector])) | is_nothing;
      added_.data()[vector] |= near & ~is_nothing;
      const WideLanes<T> more = wide<T>(near ? sums.data()[vector] : V{});
#pragma unroll
      for (std::int64_t part = 0; part < kParts; ++part)
        sums_.data()[vector * kParts + part] += more.parts.data()[part];
      if (__builtin_reduce_and(near) != 0) continue;
      const std::int64_t first = vector * kLanes<T>;
      for (std::int64_t lane = 0; lane < std::min(kLanes<T>, width_ - first); ++lane) {
        if (near[lane] == 0) add_column(first + lane, x + first + lane, rows, stride);
      }
    }
  }

  [[nodiscard]] LogSum state(std::int64_t column) const {
    const double sum = sums_.data()[column / 8][column % 8];
    if (sum == 0) return {};
    const C reference = references_.data()[column / kLanes<T>][column % kLanes<T>];
    return {static_cast<double>(reference), sum};
  }

 private:
  using C = Compute<T>;
  using V = simd::Vector<T>;
  using Mask = decltype(V{} < V{});
  static constexpr C kInfinity = std::numeric_limits<C>::infinity();
  static constexpr C kReach = static_cast<C>(LogSum::kReach);
  static constexpr std::int64_t kParts = WideLanes<T>::kParts;
  static constexpr std::size_t kVectors = kColumns / kLanes<T>;

  [[gnu::always_inline]] void start(const T* x) {
    for (std::int64_t vector = 0; vector < vectors_; ++vector) {
      const std::int64_t first = vector * kLanes<T>;
      const V row = simd::load_some(x + first, width_ - first);
      references_.data()[vector] = simd::abs(row) < kInfinity ? row : V{};
    }
    started_ = true;
  }

  void add_column(std::int64_t column, const T* x, std::int64_t rows, std::int64_t stride) {
    C top = -kInfinity;
    bool defined = true;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto value = static_cast<C>(x[row * stride]);
      defined = defined && value == value;
      top = std::max(top, value);
    }
    LogSum run{static_cast<double>(top), 0};
    for (std::int64_t row = 0; row < rows; ++row) {
      const double distance = static_cast<double>(x[row * stride]) - run.reference;
      run.sum += std::exp(distance);
    }
    if (std::isinf(top)) run.sum = 1;  // +infinity: such columns are not near, others are
    if (!defined) run.sum = std::numeric_limits<double>::quiet_NaN();
    LogSum all = state(column);
    all.join(run);
    references_.data()[column / kLanes<T>][column % kLanes<T>] = static_cast<C>(all.reference);
    sums_.data()[column / 8][column % 8] = all.sum;
    added_.data()[column / kLanes<T>][column % kLanes<T>] = -1;
  }

  std::int64_t width_;
  std::int64_t vectors_;
  bool started_ = false;
  std::array<V, kVectors> references_;
  std::array<Mask, kVectors> added_;  // columns of which something was added
  std::array<F64, kColumns / 8> sums_;
};

}  // namespace tessera::kernels::states
