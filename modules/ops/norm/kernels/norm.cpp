#include "norm.hpp"

#include <algorithm>

#include "norm_rows.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/streaming.hpp"

namespace tessera::kernels {
namespace {

/// Parameter gradients are summed over blocks of this many rows, then over the blocks in order.
constexpr std::int64_t kRowBlock = 64;

std::int64_t row_grain(std::int64_t n) { return 1 + (1 << 14) / (n + 1); }

/// total[i] (+)= sum over blocks of partial[block, i], in order.
template <class C>
void add_blocks(std::int64_t blocks, std::int64_t n, const C* partial, bool accumulate, C* total) {
  if (total == nullptr) return;
  if (!accumulate) std::fill_n(total, n, C{0});
  for (std::int64_t block = 0; block < blocks; ++block) {
    const C* row = partial + block * n;
    for (std::int64_t i = 0; i < n; ++i) total[i] += row[i];
  }
}

}  // namespace

template <class T>
void rms_norm_forward(std::int64_t rows, std::int64_t n, const T* x, const T* weight, double eps,
                      T* y, Compute<T>* rstd) {
  const bool streamed = simd::is_streamed(y, n, rows * n);
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    const simd::Stores store(streamed);
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* in = x + row * n;
        functions::RmsNorm::row(n, in, weight, eps, y + row * n, rstd + row, store,
                                NextRow<T>{row + 1 < end ? in + n : in});
      }
    });
  });
}

template <class T>
void rms_norm_backward(Workspace& workspace, std::int64_t rows, std::int64_t n, const T* dy,
                       const T* x, const T* weight, const Compute<T>* rstd, T* dx,
                       Compute<T>* dweight, bool accumulate_dweight) {
  using C = Compute<T>;
  const std::int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  const bool sums_weight = dweight != nullptr || workspace.counts();
  C* const partial = sums_weight ? workspace.take<C>(blocks * n) : nullptr;
  if (workspace.counts()) return;
  parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin * kRowBlock; row < std::min(rows, end * kRowBlock); ++row) {
        C* sums = dweight == nullptr ? nullptr : partial + row / kRowBlock * n;
        if (sums != nullptr && row % kRowBlock == 0) std::fill_n(sums, n, C{0});
        functions::RmsNormBackward::row(n, dy + row * n, x + row * n, weight, rstd + row,
                                        dx + row * n, sums);
      }
    });
  });
  add_blocks(blocks, n, partial, accumulate_dweight, dweight);
}

template <class T>
void layer_norm_forward(std::int64_t rows, std::int64_t n, const T* x, const T* weight,
                        const T* bias, double eps, T* y, Compute<T>* mean, Compute<T>* rstd) {
  const bool streamed = simd::is_streamed(y, n, rows * n);
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    const simd::Stores store(streamed);
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* in = x + row * n;
        functions::LayerNorm::row(n, in, weight, bias, eps, y + row * n, mean + row, rstd + row,
                                  store, NextRow<T>{row + 1 < end ? in + n : in});
      }
    });
  });
}

template <class T>
void layer_norm_backward(Workspace& workspace, std::int64_t rows, std::int64_t n, const T* dy,
                         const T* x, const T* weight, const Compute<T>* mean,
                         const Compute<T>* rstd, T* dx, Compute<T>* dweight, Compute<T>* dbias,
                         bool accumulate_parameters) {
  using C = Compute<T>;
  const std::int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  const bool sums_weight = dweight != nullptr || workspace.counts();
  const bool sums_bias = dbias != nullptr || workspace.counts();
  C* const weight_sums = sums_weight ? workspace.take<C>(blocks * n) : nullptr;
  C* const bias_sums = sums_bias ? workspace.take<C>(blocks * n) : nullptr;
  if (workspace.counts()) return;
  parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin * kRowBlock; row < std::min(rows, end * kRowBlock); ++row) {
        const std::int64_t at = row / kRowBlock * n;
        if (row % kRowBlock == 0) {
          if (dweight != nullptr) std::fill_n(weight_sums + at, n, C{0});
          if (dbias != nullptr) std::fill_n(bias_sums + at, n, C{0});
        }
        functions::LayerNormBackward::row(n, dy + row * n, x + row * n, weight, mean + row,
                                          rstd + row, dx + row * n,
                                          dweight == nullptr ? nullptr : weight_sums + at,
                                          dbias == nullptr ? nullptr : bias_sums + at);
      }
    });
  });
  add_blocks(blocks, n, weight_sums, accumulate_parameters, dweight);
  add_blocks(blocks, n, bias_sums, accumulate_parameters, dbias);
}

template decltype(rms_norm_forward<float>) rms_norm_forward<float>;
template decltype(rms_norm_forward<double>) rms_norm_forward<double>;
template decltype(rms_norm_forward<BFloat16>) rms_norm_forward<BFloat16>;
template decltype(rms_norm_forward<Half>) rms_norm_forward<Half>;
template decltype(rms_norm_backward<float>) rms_norm_backward<float>;
template decltype(rms_norm_backward<double>) rms_norm_backward<double>;
template decltype(rms_norm_backward<BFloat16>) rms_norm_backward<BFloat16>;
template decltype(rms_norm_backward<Half>) rms_norm_backward<Half>;
template decltype(layer_norm_forward<float>) layer_norm_forward<float>;
template decltype(layer_norm_forward<double>) layer_norm_forward<double>;
template decltype(layer_norm_forward<BFloat16>) layer_norm_forward<BFloat16>;
template decltype(layer_norm_forward<Half>) layer_norm_forward<Half>;
template decltype(layer_norm_backward<float>) layer_norm_backward<float>;
template decltype(layer_norm_backward<double>) layer_norm_backward<double>;
template decltype(layer_norm_backward<BFloat16>) layer_norm_backward<BFloat16>;
template decltype(layer_norm_backward<Half>) layer_norm_backward<Half>;

}  // namespace tessera::kernels
