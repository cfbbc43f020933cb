// Logarithms of the sums of exponentials up to each element.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "reduce/kernels/scan.hpp"
#include "reduce/kernels/scan_lanes.hpp"
#include "reduce/kernels/states.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd_math.hpp"
#include "shared/kernels/streaming.hpp"

namespace tessera::kernels {
namespace {

using simd::F64;
using simd::kLanes;
using simd::Vector;
using states::wide;
using states::WideLanes;

constexpr std::int64_t kRun = 256;        // elements of a line with one reference
constexpr std::int64_t kColumns = 512;    // columns that are scanned together
constexpr std::int64_t kGrain = 1 << 13;  // elements
/// An element may be this far above the reference. Results are the reference and the logarithm of a
/// sum, so the smaller this is, the less of their last place is lost.
constexpr float kReach = 16;

/// A value as the logarithm of sum exp(reference).
template <class C>
struct State {
  C reference = -std::numeric_limits<C>::infinity();
  double sum = 1;

  [[nodiscard]] double logarithm() const { return static_cast<double>(reference) + std::log(sum); }
  /// Makes the nearest value of C the reference.
  void set(double logarithm) {
    reference = static_cast<C>(logarithm);
    const double rest = logarithm - static_cast<double>(reference);
    sum = std::abs(rest) < 1 ? std::exp(rest) : 1;  // infinite values have no rest
  }
};

double join(double a, double b) {
  const double larger = a > b || a != a ? a : b;
  return std::isinf(larger) || larger != larger
             ? larger
             : larger + std::log1p(std::exp((a < b ? a : b) - larger));
}

template <class T>
[[gnu::always_inline]] inline Vector<T> narrow(const WideLanes<T>& x) {
  if constexpr (WideLanes<T>::kParts == 1) {
    return x.parts[0];
  } else {
    return scans::to_float(x.parts[0], x.parts[1]);
  }
}

/// Scans the sums of a vector, after (from_end: before) `before`.
template <bool from_end, class T>
[[gnu::always_inline]] inline WideLanes<T> scan_wide(WideLanes<T> x, F64& before) {
#pragma unroll
  for (std::int64_t k = 0; k < WideLanes<T>::kParts; ++k) {
    F64& part = x.parts.data()[from_end ? WideLanes<T>::kParts - 1 - k : k];
    part = scans::scan_after<scans::Sum, from_end>(part, before);
  }
  return x;
}

/// A run of whole vectors after (from_end: before) elements whose state is `state`, with its
/// reference. False, and nothing is done, where an element is too far above that.
template <bool from_end, class T>
[[gnu::always_inline]] inline bool scan_run(const T* x, std::int64_t size, State<Compute<T>>& state,
                                            T* y, const simd::Stores& store) {
  using C = Compute<T>;
  using V = Vector<T>;
  auto fits = V{} == V{};
  for (std::int64_t i = 0; i < size; i += kLanes<T>)
    fits &= simd::load(x + i) - state.reference <= C{kReach};  // neither NaN nor infinity fits
  if (__builtin_reduce_and(fits) == 0) return false;
  // Step by step for the whole run, and several vectors as one, so that no vector waits for the
  // chain of operations of another one.
  alignas(64) std::array<C, kRun> values;
  const auto each = [&](auto function) __attribute__((always_inline)) {
    constexpr std::int64_t kAtOnce = std::is_same_v<C, double> ? 1 : 4;
    using Group = std::conditional_t<kAtOnce == 1, V, simd::ManyF32<kAtOnce>>;
    const auto of = [&]<class G>(std::int64_t i, G) __attribute__((always_inline)) {
      const G result = function(simd::raw_load<G>(values.data() + i));
      std::memcpy(values.data() + i, &result, sizeof(G));
    };
    std::int64_t i = 0;
    for (; i + kAtOnce * kLanes<T> <= size; i += kAtOnce * kLanes<T>) of(i, Group{});
    for (; i < size; i += kLanes<T>) of(i, V{});
  };
  for (std::int64_t i = 0; i < size; i += kLanes<T>)
    simd::store(values.data() + i, simd::load(x + i) - state.reference);
  each([](auto v) __attribute__((always_inline)) { return simd::exp_nonpositive(v); });
  F64 before = F64{} + state.sum;
  for (std::int64_t i = 0; i < size; i += kLanes<T>) {
    C* const at = values.data() + (from_end ? size - kLanes<T> - i : i);
    simd::store(at, narrow<T>(scan_wide<from_end, T>(wide<T>(simd::load(at)), before)));
  }
  const C reference = state.reference;
  state.sum = before[0];
  each([](auto v) __attribute__((always_inline)) { return simd::log(v); });
  for (std::int64_t i = 0; i < size; i += kLanes<T>)
    store(y + i, kLanes<T>, simd::load(values.data() + i) + reference);
  return true;
}

template <bool from_end, class T>
void scan_line(const T* x, std::int64_t size, T* y, const simd::Stores& store) {
  using C = Compute<T>;
  State<C> state;
  const C nearest = static_cast<C>(x[scans::place(0, size, from_end)]);
  if (std::abs(nearest) < std::numeric_limits<C>::infinity()) state = {nearest, 0};
  std::int64_t count = 0;
  for (std::int64_t first = 0; first < size; first += count) {
    const std::int64_t left = size - first;
    count = std::min(kRun, left < kLanes<T> ? left : left / kLanes<T> * kLanes<T>);
    const std::int64_t at = from_end ? left - count : first;
    bool done = false;
    if (count >= kLanes<T> && std::abs(state.reference) < std::numeric_limits<C>::infinity()) {
      simd::dispatch([&](auto) __attribute__((always_inline)) {
        done = scan_run<from_end>(x + at, count, state, y + at, store);
      });
    }
    double value = state.logarithm();
    for (std::int64_t k = 0; k < count && !done; ++k) {
      const std::int64_t i = at + scans::place(k, count, from_end);
      value = join(value, static_cast<double>(x[i]));
      y[i] = static_cast<T>(value);
    }
    state.set(value);
  }
}

/// Adjacent columns, one row after the other.
template <class T>
class Columns {
 public:
  Columns(const T* x, std::int64_t width, T* y) : width_(width) {
    for (std::int64_t i = 0; i < width; i += kLanes<T>) {
      const V row = simd::load_some(x + i, width - i);
      references_.data()[i / kLanes<T>] = row;
      WideLanes<T>& sums = sums_.data()[i / kLanes<T>];
      sums.parts.fill(F64{} + 1);
      simd::store_some(y + i, width - i, row);
    }
  }

  [[gnu::always_inline]] void add(const T* x, const T* ahead, T* y, const simd::Stores& store) {
    for (std::int64_t i = 0; i < width_; i += kLanes<T>) {
      __builtin_prefetch(ahead + i);
      const V row = simd::load_some(x + i, width_ - i);
      const V reference = references_.data()[i / kLanes<T>];
      const auto fits = row - reference <= C{kReach};
      if (__builtin_reduce_and(fits) == 0) [[unlikely]] {
        add_alone(i, x, y);
        continue;
      }
      WideLanes<T>& sums = sums_.data()[i / kLanes<T>];
      const WideLanes<T> powers = wide<T>(simd::exp_nonpositive(row - reference));
#pragma unroll
      for (std::int64_t part = 0; part < WideLanes<T>::kParts; ++part)
        sums.parts.data()[part] += powers.parts.data()[part];
      store(y + i, width_ - i, simd::log(narrow<T>(sums)) + reference);
    }
  }

 private:
  using C = Compute<T>;
  using V = Vector<T>;

  /// The columns of one vector, some of them with an element far above the reference.
  void add_alone(std::int64_t first, const T* x, T* y) {
    V& references = references_.data()[first / kLanes<T>];
    WideLanes<T>& sums = sums_.data()[first / kLanes<T>];
    for (std::int64_t lane = 0; lane < std::min(kLanes<T>, width_ - first); ++lane) {
      const double sum = sums.parts.data()[lane / 8][lane % 8];
      State<C> state{references[lane], sum};
      const double value = join(state.logarithm(), static_cast<double>(x[first + lane]));
      y[first + lane] = static_cast<T>(value);
      state.set(value);
      references[lane] = state.reference;
      sums.parts.data()[lane / 8][lane % 8] = state.sum;
    }
  }

  std::int64_t width_;
  std::array<V, kColumns / kLanes<T>> references_;
  std::array<WideLanes<T>, kColumns / kLanes<T>> sums_;
};

template <bool from_end, class T>
void scan_columns(const ReduceShape& shape, const T* x, T* y) {
  constexpr std::int64_t kAhead = 4;  // rows
  const std::int64_t groups = (shape.inner + kColumns - 1) / kColumns;
  const std::int64_t n = shape.reduced;
  const bool streamed = simd::is_streamed(y, shape.inner, shape.outer * n * shape.inner);
  const std::int64_t work = n * std::min(kColumns, shape.inner);
  parallel_for(0, shape.outer * groups, 1 + kGrain / (work + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 const simd::Stores store(streamed);
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t column = task % groups * kColumns;
                   const std::int64_t first = task / groups * n * shape.inner + column;
                   const auto row_at = [&](std::int64_t k) {
                     return first + scans::place(k, n, from_end) * shape.inner;
                   };
                   Columns<T> columns(x + row_at(0), std::min(kColumns, shape.inner - column),
                                      y + row_at(0));
                   simd::dispatch([&](auto) __attribute__((always_inline)) {
                     for (std::int64_t k = 1; k < n; ++k) {
                       columns.add(x + row_at(k), x + row_at(std::min(k + kAhead, n - 1)),
                                   y + row_at(k), store);
                     }
                   });
                 }
               });
}

template <bool from_end, class T>
void scan_type(const ReduceShape& shape, const T* x, T* y) {
  if (shape.outer * shape.reduced * shape.inner == 0) return;
  if (shape.inner > 1) return scan_columns<from_end>(shape, x, y);
  const bool streamed = simd::is_streamed(y, shape.reduced, shape.outer * shape.reduced);
  parallel_for(
      0, shape.outer, 1 + kGrain / (shape.reduced + 1), [&](std::int64_t begin, std::int64_t end) {
        const simd::Stores store(streamed);
        for (std::int64_t o = begin; o < end; ++o)
          scan_line<from_end>(x + o * shape.reduced, shape.reduced, y + o * shape.reduced, store);
      });
}

}  // namespace

void log_scan(bool from_end, DType dtype, const ReduceShape& shape, const void* x, void* y) {
  visit<FloatingTypes>(
      dtype,
      [&]<class T>(T) {
        const auto* from = static_cast<const T*>(x);
        auto* to = static_cast<T*>(y);
        from_end ? scan_type<true>(shape, from, to) : scan_type<false>(shape, from, to);
      },
      [] {
        throw std::invalid_argument(
            "scan: log_sum_exp needs a floating type; cast the tensor first");
      });
}

}  // namespace tessera::kernels
