#include "scan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

using simd::F64;

constexpr std::int64_t kPart = 1 << 14;   // elements of a line whose total is found first
constexpr std::int64_t kWave = 1 << 18;   // elements that are read twice: they stay in the cache
constexpr std::int64_t kColumns = 1024;   // columns that are scanned together
constexpr std::int64_t kGrain = 1 << 14;  // elements

struct Sum {
  // Lanes are filled with -0, which leaves -0 as it is; for 0 the compiler would choose
  // instructions that take three times as long (vexpandpd on Zen 5).
  static constexpr double kNothing = -0.0;
  template <class V>
  [[gnu::always_inline]] static V start() {
    return V{0};
  }
  template <class V>
  [[gnu::always_inline]] static V join(V a, V b) {
    return a + b;
  }
};

struct Product {
  static constexpr double kNothing = 1.0;
  template <class V>
  [[gnu::always_inline]] static V start() {
    return V{1};
  }
  template <class V>
  [[gnu::always_inline]] static V join(V a, V b) {
    return a * b;
  }
};

struct LogSumExp {
  template <class V>
  static V start() {
    return -std::numeric_limits<V>::infinity();
  }
  template <class V>
  static V join(V a, V b) {
    const V larger = a > b || a != a ? a : b;
    return std::isinf(larger) || larger != larger
               ? larger
               : larger + std::log1p(std::exp((a < b ? a : b) - larger));
  }
};

template <class T>
using Value = std::conditional_t<kIsFloating<T>, double, std::int64_t>;
template <class T>
using Out = std::conditional_t<kIsFloating<T>, T, std::int64_t>;

/// Element k of a line of `size` in the order of the scan.
[[gnu::always_inline]] inline std::int64_t place(std::int64_t k, std::int64_t size, bool from_end) {
  return from_end ? size - 1 - k : k;
}

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

/// Each lane is joined with those before it (after it), then with `before`.
template <class Scan, bool from_end>
[[gnu::always_inline]] inline F64 scan_lanes(F64 v, F64 before) {
  constexpr double k = Scan::kNothing;
  constexpr F64 nothing = {k, k, k, k, k, k, k, k};  // a sum with 0 would make 0 of -0
  if constexpr (from_end) {
    v = Scan::join(v, __builtin_shufflevector(v, nothing, 1, 2, 3, 4, 5, 6, 7, 8));
    v = Scan::join(v, __builtin_shufflevector(v, nothing, 2, 3, 4, 5, 6, 7, 8, 8));
    v = Scan::join(v, __builtin_shufflevector(v, nothing, 4, 5, 6, 7, 8, 8, 8, 8));
  } else {
    v = Scan::join(v, __builtin_shufflevector(v, nothing, 8, 0, 1, 2, 3, 4, 5, 6));
    v = Scan::join(v, __builtin_shufflevector(v, nothing, 8, 8, 0, 1, 2, 3, 4, 5));
    v = Scan::join(v, __builtin_shufflevector(v, nothing, 8, 8, 8, 8, 0, 1, 2, 3));
  }
  return Scan::join(v, before);
}

template <bool from_end>
[[gnu::always_inline]] inline F64 last_lane(F64 v) {
  return from_end ? __builtin_shufflevector(v, v, 0, 0, 0, 0, 0, 0, 0, 0)
                  : __builtin_shufflevector(v, v, 7, 7, 7, 7, 7, 7, 7, 7);
}

[[gnu::always_inline]] inline simd::F32 to_float(F64 low, F64 high) {
  using HalfVector = float __attribute__((vector_size(32)));
  return __builtin_shufflevector(__builtin_convertvector(low, HalfVector),
                                 __builtin_convertvector(high, HalfVector), 0, 1, 2, 3, 4, 5, 6, 7,
                                 8, 9, 10, 11, 12, 13, 14, 15);
}

/// Scans the vector at x that follows (from_end: precedes) elements whose join is `before`; returns
/// the join with it.
template <class Scan, bool from_end, class T>
[[gnu::always_inline]] inline F64 scan_vector(const T* x, F64 before, T* y) {
  if constexpr (std::is_same_v<T, double>) {
    const F64 scanned = scan_lanes<Scan, from_end>(simd::load(x), before);
    simd::store(y, scanned);
    return last_lane<from_end>(scanned);
  } else {
    auto [low, high] = simd::to_double(simd::load(x));
    if constexpr (from_end) {
      high = scan_lanes<Scan, true>(high, before);
      low = scan_lanes<Scan, true>(low, last_lane<true>(high));
    } else {
      low = scan_lanes<Scan, false>(low, before);
      high = scan_lanes<Scan, false>(high, last_lane<false>(low));
    }
    simd::store(y, to_float(low, high));
    return last_lane<from_end>(from_end ? low : high);
  }
}

/// Elements [first, last) in the order of the scan, after a join of `value` before them.
template <class Scan, bool from_end, class T>
[[gnu::always_inline]] inline void scan_part(const T* x, std::int64_t size, std::int64_t first,
                                             std::int64_t last, Value<T> value, Out<T>* y) {
  std::int64_t k = first;
  if constexpr (kIsFloating<T> && !std::is_same_v<Scan, LogSumExp>) {
    F64 before = F64{} + value;
    for (; k + simd::kLanes<T> <= last; k += simd::kLanes<T>) {
      const std::int64_t at = from_end ? size - k - simd::kLanes<T> : k;
      before = scan_vector<Scan, from_end>(x + at, before, y + at);
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
void scan_line(const T* x, std::int64_t size, Out<T>* y) {
  using V = Value<T>;
  const std::int64_t parts = (size + kPart - 1) / kPart;
  constexpr std::int64_t kWaveParts = kWave / kPart;
  std::array<V, kWaveParts> before;
  V value = Scan::template start<V>();
  for (std::int64_t wave = 0; wave < parts; wave += kWaveParts) {
    const std::int64_t count = std::min(kWaveParts, parts - wave);
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
      simd::dispatch([&](auto) __attribute__((always_inline)) {
        for (std::int64_t p = begin; p < end; ++p) {
          scan_part<Scan, from_end>(x, size, (wave + p) * kPart, end_of(wave + p), before.data()[p],
                                    y);
        }
      });
    });
  }
}

template <class Scan, bool from_end, class T>
void scan_rows(const ReduceShape& shape, const T* x, Out<T>* y) {
  constexpr bool in_parts = !std::is_same_v<Scan, LogSumExp>;  // a second join costs too much
  parallel_for(0, shape.outer, 1 + kGrain / (shape.reduced + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t o = begin; o < end; ++o) {
                   const T* from = x + o * shape.reduced;
                   Out<T>* to = y + o * shape.reduced;
                   if (in_parts && shape.reduced > kPart) {
                     scan_line<Scan, from_end>(from, shape.reduced, to);
                   } else {
                     simd::dispatch([&](auto) __attribute__((always_inline)) {
                       scan_part<Scan, from_end>(from, shape.reduced, 0, shape.reduced,
                                                 Scan::template start<Value<T>>(), to);
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

template <class Scan, bool from_end, class T>
void scan_columns(const ReduceShape& shape, const T* x, Out<T>* y) {
  each_column_group(shape, [&](std::int64_t first, std::int64_t width) {
    std::array<Value<T>, kColumns> values;
    values.fill(Scan::template start<Value<T>>());
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t k = 0; k < shape.reduced; ++k) {
        const std::int64_t at = first + place(k, shape.reduced, from_end) * shape.inner;
        for (std::int64_t i = 0; i < width; ++i) {
          Value<T>& value = values.data()[i];
          value = Scan::join(value, static_cast<Value<T>>(x[at + i]));
          y[at + i] = static_cast<Out<T>>(value);
        }
      }
    });
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
    if constexpr (!std::is_same_v<Scan, LogSumExp> || kIsFloating<T>) {
      from_end ? scan_type<Scan, true, T>(shape, x, y) : scan_type<Scan, false, T>(shape, x, y);
    } else {
      throw std::invalid_argument("scan: log_sum_exp needs a floating type; cast the tensor first");
    }
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
      return scan_in<LogSumExp>(from_end, dtype, shape, x, y);
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
