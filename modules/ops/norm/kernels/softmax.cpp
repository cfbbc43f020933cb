#include <type_traits>

#include "norm.hpp"
#include "norm_rows.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/streaming.hpp"

namespace tessera::kernels {
namespace {

std::int64_t row_grain(std::int64_t n) { return 1 + (1 << 13) / (n + 1); }

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
        functions::Softmax::row(n, in, out, values, store, NextRow<T>{row + 1 < end ? in + n : in});
      }
    });
  });
}

template <class T>
void softmax_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* y, T* dx) {
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        functions::SoftmaxBackward::row(n, dy + row * n, y + row * n, dx + row * n);
      }
    });
  });
}

template <class T>
void log_softmax_forward(std::int64_t rows, std::int64_t n, const T* x, T* y) {
  const bool streamed = simd::is_streamed(y, n, rows * n);
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    const simd::Stores store(streamed);
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const in = x + row * n;
        functions::LogSoftmax::row(n, in, y + row * n, store,
                                   NextRow<T>{row + 1 < end ? in + n : in});
      }
    });
  });
}

template <class T>
void log_softmax_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* y, T* dx) {
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        functions::LogSoftmaxBackward::row(n, dy + row * n, y + row * n, dx + row * n);
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
