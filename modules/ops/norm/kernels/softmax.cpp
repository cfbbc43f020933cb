#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "norm.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/streaming.hpp"

namespace tessera::kernels {
namespace {

using simd::kLanes;
using simd::load_some;
using simd::store_some;

std::int64_t row_grain(std::int64_t n) { return 1 + (1 << 13) / (n + 1); }

/// Calls use(chain, place, elements from there on) for the vectors of a row, in four chains, so
/// that no maximum or sum waits for the one before.
template <class T, class Use>
[[gnu::always_inline]] inline void each_vector(std::int64_t n, Use use) {
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
  each_vector<T>(n,
                 [&](int chain, std::int64_t i, std::int64_t rest) __attribute__((always_inline)) {
                   tops[chain] = simd::maximum(load_some(x + i, rest, kLowest), tops[chain]);
                 });
  return simd::max_lanes(
      simd::maximum(simd::maximum(tops[0], tops[1]), simd::maximum(tops[2], tops[3])));
}

/// The sum of exp(x - top) over a row; use(place, rest, the exponentials) may keep them. What is at
/// `next` is brought into the cache meanwhile: the row that is read afterwards.
template <class T, class Use>
[[gnu::always_inline]] inline Compute<T> sum_of_exponentials(std::int64_t n, const T* x,
                                                             Compute<T> top, const T* next,
                                                             Use use) {
  simd::Vector<T> sums[4] = {};
  each_vector<T>(n,
                 [&](int chain, std::int64_t i, std::int64_t rest) __attribute__((always_inline)) {
                   __builtin_prefetch(next + i);
                   const auto value = simd::exp_nonpositive(
                       load_some(x + i, rest, -std::numeric_limits<Compute<T>>::infinity()) - top);
                   use(i, rest, value);
                   sums[chain] += value;
                 });
  return simd::sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace

template <class T>
void softmax_forward(Workspace& workspace, std::int64_t rows, std::int64_t n, const T* x, T* y) {
  using C = Compute<T>;
  const bool streamed = simd::is_streamed(y, n, rows * n);  // counting: y is null, so aligned
  // The exponentials, until their sum is known: in y if it holds them as they are computed.
  const bool in_place = std::is_same_v<T, C> && !streamed;
  const Workspace::Parts parts =
      workspace.per_thread([&](Workspace& part) { part.take<C>(in_place ? 0 : n); });
  if (workspace.counts()) return;
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    Workspace part = parts.mine();
    C* const exponentials = part.take<C>(in_place ? 0 : n);
    const simd::Stores store(streamed);
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const in = x + row * n;
        T* const out = y + row * n;
        C* values = exponentials;
        if constexpr (std::is_same_v<T, C>) values = in_place ? out : values;
        const C sum = sum_of_exponentials(
            n, in, row_maximum(n, in), row + 1 < end ? in + n : in,
            [&](std::int64_t i, std::int64_t rest, simd::Vector<T> value)
                __attribute__((always_inline)) { store_some(values + i, rest, value); });
        const C factor = C{1} / sum;
        each_vector<T>(n,
                       [&](int, std::int64_t i, std::int64_t rest) __attribute__((always_inline)) {
                         store(out + i, rest, load_some(values + i, rest) * factor);
                       });
      }
    });
  });
}

template <class T>
void softmax_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* y, T* dx) {
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* gradient = dy + row * n;
        const T* out = y + row * n;
        simd::Vector<T> sums = {};
        for (std::int64_t i = 0; i < n; i += kLanes<T>) {
          sums += load_some(gradient + i, n - i) * load_some(out + i, n - i);
        }
        const auto dot = simd::sum_lanes(sums);
        for (std::int64_t i = 0; i < n; i += kLanes<T>) {
          const auto value = load_some(out + i, n - i) * (load_some(gradient + i, n - i) - dot);
          store_some(dx + row * n + i, n - i, value);
        }
      }
    });
  });
}

template <class T>
void log_softmax_forward(std::int64_t rows, std::int64_t n, const T* x, T* y) {
  using C = Compute<T>;
  const bool streamed = simd::is_streamed(y, n, rows * n);
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    const simd::Stores store(streamed);
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const in = x + row * n;
        const C top = row_maximum(n, in);
        const C log_sum =
            std::log(sum_of_exponentials(n, in, top, row + 1 < end ? in + n : in,
                                         [](std::int64_t, std::int64_t, simd::Vector<T>) {}));
        each_vector<T>(n,
                       [&](int, std::int64_t i, std::int64_t rest) __attribute__((always_inline)) {
                         store(y + row * n + i, rest, load_some(in + i, rest) - top - log_sum);
                       });
      }
    });
  });
}

template <class T>
void log_softmax_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* y, T* dx) {
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* gradient = dy + row * n;
        simd::Vector<T> sums = {};
        for (std::int64_t i = 0; i < n; i += kLanes<T>) sums += load_some(gradient + i, n - i);
        const auto sum = simd::sum_lanes(sums);
        for (std::int64_t i = 0; i < n; i += kLanes<T>) {
          const auto value =
              load_some(gradient + i, n - i) - simd::exp(load_some(y + row * n + i, n - i)) * sum;
          store_some(dx + row * n + i, n - i, value);
        }
      }
    });
  });
}

template decltype(softmax_forward<float>) softmax_forward<float>;
template decltype(softmax_forward<double>) softmax_forward<double>;
template decltype(softmax_forward<BFloat16>) softmax_forward<BFloat16>;
template decltype(softmax_forward<Half>) softmax_forward<Half>;
template decltype(softmax_backward<float>) softmax_backward<float>;
template decltype(softmax_backward<double>) softmax_backward<double>;
template decltype(softmax_backward<BFloat16>) softmax_backward<BFloat16>;
template decltype(softmax_backward<Half>) softmax_backward<Half>;
template decltype(log_softmax_forward<float>) log_softmax_forward<float>;
template decltype(log_softmax_forward<double>) log_softmax_forward<double>;
template decltype(log_softmax_forward<BFloat16>) log_softmax_forward<BFloat16>;
template decltype(log_softmax_forward<Half>) log_softmax_forward<Half>;
template decltype(log_softmax_backward<float>) log_softmax_backward<float>;
template decltype(log_softmax_backward<double>) log_softmax_backward<double>;
template decltype(log_softmax_backward<BFloat16>) log_softmax_backward<BFloat16>;
template decltype(log_softmax_backward<Half>) log_softmax_backward<Half>;

}  // namespace tessera::kernels
