#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "norm.hpp"
#include "shared/kernels/exp_difference.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

using simd::kLanes;
using simd::load_some;
using simd::store_some;

std::int64_t row_grain(std::int64_t n) { return 1 + (1 << 13) / (n + 1); }

template <class T>
[[gnu::always_inline]] inline Compute<T> row_maximum(std::int64_t n, const T* x) {
  constexpr auto kLowest = -std::numeric_limits<Compute<T>>::infinity();
  auto top = simd::Vector<T>{} + kLowest;
  for (std::int64_t i = 0; i < n; i += kLanes<T>)
    top = simd::maximum(load_some(x + i, n - i, kLowest), top);
  return simd::max_lanes(top);
}

}  // namespace

template <class T>
void softmax_forward(std::int64_t rows, std::int64_t n, const T* x, T* y) {
  using C = Compute<T>;
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* in = x + row * n;
        T* out = y + row * n;
        const C top = row_maximum(n, in);
        // A T that holds the exponentials as they are computed keeps them; they are computed again
        // rather than stored rounded to 16 bits.
        constexpr bool kKept = std::is_same_v<T, C>;
        simd::Vector<T> sums = {};
        for (std::int64_t i = 0; i < n; i += kLanes<T>) {
          const auto value = simd::exp_of_difference(
              load_some(in + i, n - i, -std::numeric_limits<C>::infinity()) - top);
          if constexpr (kKept) store_some(out + i, n - i, value);
          sums += value;
        }
        const C factor = C{1} / simd::sum_lanes(sums);
        for (std::int64_t i = 0; i < n; i += kLanes<T>) {
          if constexpr (kKept) {
            store_some(out + i, n - i, load_some(out + i, n - i) * factor);
          } else {
            store_some(out + i, n - i,
                       simd::exp_of_difference(load_some(in + i, n - i) - top) * factor);
          }
        }
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
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* in = x + row * n;
        const C top = row_maximum(n, in);
        simd::Vector<T> sums = {};
        for (std::int64_t i = 0; i < n; i += kLanes<T>) {
          sums += simd::exp_of_difference(
              load_some(in + i, n - i, -std::numeric_limits<C>::infinity()) - top);
        }
        const C log_sum = std::log(simd::sum_lanes(sums));
        for (std::int64_t i = 0; i < n; i += kLanes<T>) {
          store_some(y + row * n + i, n - i, load_some(in + i, n - i) - top - log_sum);
        }
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
