#include "scan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "reduce/kernels/scan_lanes.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/streaming.hpp"

namespace tessera::kernels {
namespace {

using namespace scans;  // NOLINT(google-build-using-namespace)

constexpr std::int64_t kPart = 1 << 14;    // elements of a line whose total is found first
constexpr std::int64_t kWave = 16;         // parts at most that are read twice, while in the cache
constexpr std::int64_t kInLine = 1 << 11;  // elements of a line that are brought into the cache
constexpr std::int64_t kColumns = 1024;    // columns that are scanned together
constexpr std::int64_t kGrain = 1 << 14;   // elements

template <class T>
using Value = std::conditional_t<kIsFloating<T>, double, std::int64_t>;
template <class T>
using Out = std::conditional_t<kIsFloating<T>, T, std::int64_t>;

/// The join of `count` adjacent elements, in an order of its own.
template <class Scan, class T>
[[gnu::always_inline]] inline Value<T> total(const T* x, std::int64_t count) {
  constexpr std::int64_t kLanes = 16;
  std::array<Value<T>, kLanes> lanes;
  lanes.fill(Scan::template start<Value<T>>());
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      Value<T>& value = lanes.data()[lane];
      value = Scan::join(value, static_cast<Value<T>>(x[i + lane]));
    }
  }
  Value<T> result = lanes[0];
  for (std::size_t lane = 1; lane < kLanes; ++lane) result = Scan::join(result, lanes.data()[lane]);
  for (; i < count; ++i) result = Scan::join(result, static_cast<Value<T>>(x[i]));
  return result;
}

/// Scans the vector at x that follows (from_end: precedes) elements whose join is `before`.
template <class Scan, bool from_end, class T>
[[gnu::always_inline]] inline void scan_vector(const T* x, F64& before, T* y,
                                               const simd::Stores& store) {
  if constexpr (std::is_same_v<T, double>) {
    store(y, simd::kLanes<T>, scan_after<Scan, from_end>(simd::load(x), before));
  } else {
    auto [low, high] = simd::to_double(simd::load(x));
    if constexpr (from_end) {
      high = scan_after<Scan, true>(high, before);
      low = scan_after<Scan, true>(low, before);
    } else {
      low = scan_after<Scan, false>(low, before);
      high = scan_after<Scan, false>(high, before);
    }
    store(y, simd::kLanes<T>, to_float(low, high));
  }
}

/// Elements [first, last) in the order of the scan, after a join of `value` before them. Those that
/// come `ahead` later are brought into the cache meanwhile.
template <class Scan, bool from_end, class T>
[[gnu::always_inline]] inline void scan_part(const T* x, std::int64_t size, std::int64_t first,
                                             std::int64_t last, Value<T> value, Out<T>* y,
                                             [[maybe_unused]] std::int64_t ahead,
                                             [[maybe_unused]] const simd::Stores& store) {
  std::int64_t k = first;
  if constexpr (kIsFloating<T>) {
    F64 before = F64{} + value;
    for (; k + simd::kLanes<T> <= last; k += simd::kLanes<T>) {
      const std::int64_t at = from_end ? size - k - simd::kLanes<T> : k;
      __builtin_prefetch(x + at + (from_end ? -ahead : ahead), 0, 2);
      scan_vector<Scan, from_end>(x + at, before, y + at, store);
    }
    value = before[0];
  }
  for (; k < last; ++k) {
    const std::int64_t at = place(k, size, from_end);
    value = Scan::join(value, static_cast<Value<T>>(x[at]));
    y[at] = static_cast<Out<T>>(value);
  }
}

/// One line in two passes over parts: their totals, then each part after the totals before it.
template <class Scan, bool from_end, class T>
void scan_line(const T* x, std::int64_t size, Out<T>* y, bool streamed) {
  using V = Value<T>;
  const std::int64_t parts = (size + kPart - 1) / kPart;
  // The bits do not depend on it: parts are joined in order.
  const std::int64_t at_once = std::clamp<std::int64_t>(2 * threads(), 4, kWave);
  std::array<V, kWave> before;
  V value = Scan::template start<V>();
  for (std::int64_t wave = 0; wave < parts; wave += at_once) {
    const std::int64_t count = std::min(at_once, parts - wave);
    const auto end_of = [&](std::int64_t part) { return std::min(size, (part + 1) * kPart); };
    parallel_for(0, count, kGrain / kPart, [&](std::int64_t begin, std::int64_t end) {
      simd::dispatch([&](auto) __attribute__((always_inline)) {
        for (std::int64_t p = begin; p < end; ++p) {
          const std::int64_t first = (wave + p) * kPart;
          const std::int64_t last = end_of(wave + p);
          before.data()[p] = total<Scan>(x + (from_end ? size - last : first), last - first);
        }
      });
    });
    for (std::int64_t p = 0; p < count; ++p)
      value = Scan::join(value, std::exchange(before.data()[p], value));
    parallel_for(0, count, kGrain / kPart, [&](std::int64_t begin, std::int64_t end) {
      const simd::Stores store(streamed);
      simd::dispatch([&](auto) __attribute__((always_inline)) {
        for (std::int64_t p = begin; p < end; ++p) {
          scan_part<Scan, from_end>(x, size, (wave + p) * kPart, end_of(wave + p), before.data()[p],
                                    y, at_once * kPart, store);
        }
      });
    });
  }
}

template <class Scan, bool from_end, class T>
void scan_rows(const ReduceShape& shape, const T* x, Out<T>* y) {
  bool streamed = false;
  if constexpr (kIsFloating<T>)
    streamed = simd::is_streamed(y, shape.reduced, shape.outer * shape.reduced);
  parallel_for(
      0, shape.outer, 1 + kGrain / (shape.reduced + 1), [&](std::int64_t begin, std::int64_t end) {
        const simd::Stores store(streamed);
        for (std::int64_t o = begin; o < end; ++o) {
          const T* from = x + o * shape.reduced;
          Out<T>* to = y + o * shape.reduced;
          if (shape.reduced > kPart) {
            scan_line<Scan, from_end>(from, shape.reduced, to, streamed);
          } else {
            simd::dispatch([&](auto) __attribute__((always_inline)) {
              scan_part<Scan, from_end>(from, shape.reduced, 0, shape.reduced,
                                        Scan::template start<Value<T>>(), to, kInLine, store);
            });
          }
        }
      });
}

/// Calls body(offset of the first element, columns) for groups of adjacent columns, in parallel.
template <class Body>
void each_column_group(const ReduceShape& shape, Body body) {
  const std::int64_t groups = (shape.inner + kColumns - 1) / kColumns;
  const std::int64_t work = shape.reduced * std::min(kColumns, shape.inner);
  parallel_for(0, shape.outer * groups, 1 + kGrain / (work + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t column = task % groups * kColumns;
                   body(task / groups * shape.reduced * shape.inner + column,
                        std::min(kColumns, shape.inner - column));
                 }
               });
}

/// Calls row(offset of a row's first element, offset of the row that is read some rows later) for
/// the rows of a group of columns in the order of the scan.
template <class Row>
[[gnu::always_inline]] inline void each_row(const ReduceShape& shape, bool from_end,
                                            std::int64_t first, Row row) {
  constexpr std::int64_t kAhead = 4;
  for (std::int64_t k = 0; k < shape.reduced; ++k) {
    const std::int64_t next = std::min(k + kAhead, shape.reduced - 1);
    row(first + place(k, shape.reduced, from_end) * shape.inner,
        first + place(next, shape.reduced, from_end) * shape.inner);
  }
}

template <class Scan, bool from_end, class T>
void scan_columns(const ReduceShape& shape, const T* x, Out<T>* y) {
  bool streamed = false;
  if constexpr (kIsFloating<T>)
    streamed = simd::is_streamed(y, shape.inner, shape.outer * shape.reduced * shape.inner);
  each_column_group(shape, [&](std::int64_t first, std::int64_t width) {
    if constexpr (kIsFloating<T>) {
      constexpr std::int64_t kParts = simd::kLanes<T> / 8;
      std::array<F64, kColumns / 8> values;
      values.fill(F64{} + Scan::template start<double>());
      const simd::Stores store(streamed);
      simd::dispatch([&](auto) __attribute__((always_inline)) {
        each_row(shape, from_end, first,
                 [&](std::int64_t at, std::int64_t ahead) __attribute__((always_inline)) {
                   for (std::int64_t i = 0; i < width; i += simd::kLanes<T>) {
                     __builtin_prefetch(x + ahead + i);
                     const auto element = simd::load_some(x + at + i, width - i);
                     F64& value = values.data()[i / 8];
                     if constexpr (kParts == 1) {
                       value = Scan::join(value, element);
                       store(y + at + i, width - i, value);
                     } else {
                       const auto [low, high] = simd::to_double(element);
                       F64& upper = values.data()[i / 8 + 1];
                       value = Scan::join(value, low);
                       upper = Scan::join(upper, high);
                       store(y + at + i, width - i, to_float(value, upper));
                     }
                   }
                 });
      });
    } else {
      std::array<Value<T>, kColumns> values;
      values.fill(Scan::template start<Value<T>>());
      simd::dispatch([&](auto) __attribute__((always_inline)) {
        each_row(shape, from_end, first,
                 [&](std::int64_t at, std::int64_t) __attribute__((always_inline)) {
                   for (std::int64_t i = 0; i < width; ++i) {
                     Value<T>& value = values.data()[i];
                     value = Scan::join(value, static_cast<Value<T>>(x[at + i]));
                     y[at + i] = static_cast<Out<T>>(value);
                   }
                 });
      });
    }
  });
}

template <class Scan, bool from_end, class T>
void scan_type(const ReduceShape& shape, const void* x, void* y) {
  const auto* from = static_cast<const T*>(x);
  auto* to = static_cast<Out<T>*>(y);
  shape.inner == 1 ? scan_rows<Scan, from_end>(shape, from, to)
                   : scan_columns<Scan, from_end>(shape, from, to);
}

template <class Scan>
void scan_in(bool from_end, DType dtype, const ReduceShape& shape, const void* x, void* y) {
  visit(dtype, [&]<class T>(T) {
    from_end ? scan_type<Scan, true, T>(shape, x, y) : scan_type<Scan, false, T>(shape, x, y);
  });
}

}  // namespace

void scan(ScanOp op, bool from_end, DType dtype, const ReduceShape& shape, const void* x, void* y) {
  switch (op) {
    case ScanOp::sum:
      return scan_in<Sum>(from_end, dtype, shape, x, y);
    case ScanOp::prod:
      return scan_in<Product>(from_end, dtype, shape, x, y);
    case ScanOp::log_sum_exp:
      return log_scan(from_end, dtype, shape, x, y);
  }
}

void linear_recurrence(bool from_end, DType dtype, const ReduceShape& shape, const void* x,
                       const void* factor, void* y) {
  const auto of_type = [&]<class T>(T) {
    const auto* from = static_cast<const T*>(x);
    const auto* factors = static_cast<const T*>(factor);
    auto* to = static_cast<T*>(y);
    each_column_group(shape, [&](std::int64_t first, std::int64_t width) {
      std::array<double, kColumns> values{};
      simd::dispatch([&](auto) __attribute__((always_inline)) {
        for (std::int64_t k = 0; k < shape.reduced; ++k) {
          const std::int64_t at = first + place(k, shape.reduced, from_end) * shape.inner;
          for (std::int64_t i = 0; i < width; ++i) {
            double& value = values.data()[i];
            // The first factor meets nothing, not even when it is infinite.
            const double gained = k == 0 ? 0 : static_cast<double>(factors[at + i]) * value;
            value = static_cast<double>(from[at + i]) + gained;
            to[at + i] = static_cast<T>(value);
          }
        }
      });
    });
  };
  visit<FloatingTypes>(dtype, of_type, [] {
    throw std::invalid_argument("linear_recurrence: needs a floating type; cast the tensor first");
  });
}

}  // namespace tessera::kernels
