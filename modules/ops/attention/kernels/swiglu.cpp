#include "swiglu.hpp"

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

/// Rows worth a thread's while.
std::int64_t row_grain(std::int64_t n) { return 1 + (1 << 14) / (n + 1); }

}  // namespace

template <class T>
void swiglu_forward(std::int64_t rows, std::int64_t n, const T* gate, std::int64_t gate_stride,
                    const T* up, std::int64_t up_stride, T* y) {
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t i = 0; i < n; i += simd::kLanes<T>) {
          const auto x = simd::load_some(gate + row * gate_stride + i, n - i);
          const auto factor = simd::load_some(up + row * up_stride + i, n - i);
          simd::store_some(y + row * n + i, n - i, x * simd::sigmoid(x) * factor);
        }
      }
    });
  });
}

template <class T>
void swiglu_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* gate,
                     std::int64_t gate_stride, const T* up, std::int64_t up_stride, T* dgate,
                     T* dup) {
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t i = 0; i < n; i += simd::kLanes<T>) {
          const std::int64_t rest = n - i;
          const auto x = simd::load_some(gate + row * gate_stride + i, rest);
          const auto dout = simd::load_some(dy + row * n + i, rest);
          const auto factor = simd::load_some(up + row * up_stride + i, rest);
          const auto s = simd::sigmoid(x);
          simd::store_some(dgate + row * gate_stride + i, rest,
                           dout * factor * s * (1 + x * (1 - s)));
          simd::store_some(dup + row * up_stride + i, rest, dout * x * s);
        }
      }
    });
  });
}

template decltype(swiglu_forward<float>) swiglu_forward<float>;
template decltype(swiglu_forward<double>) swiglu_forward<double>;
template decltype(swiglu_forward<BFloat16>) swiglu_forward<BFloat16>;
template decltype(swiglu_forward<Half>) swiglu_forward<Half>;
template decltype(swiglu_backward<float>) swiglu_backward<float>;
template decltype(swiglu_backward<double>) swiglu_backward<double>;
template decltype(swiglu_backward<BFloat16>) swiglu_backward<BFloat16>;
template decltype(swiglu_backward<Half>) swiglu_backward<Half>;

}  // namespace tessera::kernels
