#include "norm.hpp"

#include <algorithm>
#include <cmath>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/streaming.hpp"

namespace tessera::kernels {
namespace {

using simd::kLanes;
using simd::load_some;
using simd::store_some;

/// Parameter gradients are summed over blocks of this many rows, then over the blocks in order.
constexpr std::int64_t kRowBlock = 64;

std::int64_t row_grain(std::int64_t n) { return 1 + (1 << 14) / (n + 1); }

template <class T>
[[gnu::always_inline]] inline simd::Vector<T> weight_at(const T* weight, std::int64_t i,
                                                        std::int64_t n) {
  return weight == nullptr ? simd::Vector<T>{} + 1 : load_some(weight + i, n - i);
}

/// Sums term(i) over the vectors of a row, in four chains.
template <class T, class Term>
[[gnu::always_inline]] inline Compute<T> row_sum(std::int64_t n, Term term) {
  simd::Vector<T> sum[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * kLanes<T> <= n; i += 4 * kLanes<T>) {
#pragma unroll
    for (int chain = 0; chain < 4; ++chain) sum[chain] += term(i + chain * kLanes<T>);
  }
  for (; i < n; i += kLanes<T>) sum[0] += term(i);
  return simd::sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

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
  using C = Compute<T>;
  const bool streamed = simd::is_streamed(y, n, rows * n);
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    const simd::Stores store(streamed);
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* in = x + row * n;
        T* out = y + row * n;
        const C squares = row_sum<T>(n, [&](std::int64_t i) __attribute__((always_inline)) {
          const auto value = load_some(in + i, n - i);
          return value * value;
        });
        const C factor = C{1} / std::sqrt(squares / static_cast<C>(n) + static_cast<C>(eps));
        rstd[row] = factor;
        const T* const next = row + 1 < end ? in + n : in;
        for (std::int64_t i = 0; i < n; i += kLanes<T>) {
          __builtin_prefetch(next + i);  // the row that is read afterwards
          store(out + i, n - i, load_some(in + i, n - i) * factor * weight_at(weight, i, n));
        }
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
        const T* in = x + row * n;
        const T* dout = dy + row * n;
        C* sums = dweight == nullptr ? nullptr : partial + row / kRowBlock * n;
        if (sums != nullptr && row % kRowBlock == 0) std::fill_n(sums, n, C{0});
        const C factor = rstd[row];
        const C dot = row_sum<T>(n, [&](std::int64_t i) __attribute__((always_inline)) {
          return load_some(dout + i, n - i) * weight_at(weight, i, n) * load_some(in + i, n - i);
        });
        const C mean = dot * factor / static_cast<C>(n);
        for (std::int64_t i = 0; i < n; i += kLanes<T>) {
          const std::int64_t rest = n - i;
          const auto gradient = load_some(dout + i, rest);
          const auto normal = load_some(in + i, rest) * factor;
          if (sums != nullptr)
            store_some(sums + i, rest, load_some(sums + i, rest) + gradient * normal);
          store_some(dx + row * n + i, rest,
                     (gradient * weight_at(weight, i, n) - normal * mean) * factor);
        }
      }
    });
  });
  add_blocks(blocks, n, partial, accumulate_dweight, dweight);
}

template <class T>
void layer_norm_forward(std::int64_t rows, std::int64_t n, const T* x, const T* weight,
                        const T* bias, double eps, T* y, Compute<T>* mean, Compute<T>* rstd) {
  using C = Compute<T>;
  const bool streamed = simd::is_streamed(y, n, rows * n);
  parallel_for(0, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    const simd::Stores store(streamed);
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* in = x + row * n;
        const C sum = row_sum<T>(n, [&](std::int64_t i) __attribute__((always_inline)) {
          return load_some(in + i, n - i);
        });
        const C center = sum / static_cast<C>(n);
        // The tail's spare lanes hold the mean, so that they add nothing.
        const C squares = row_sum<T>(n, [&](std::int64_t i) __attribute__((always_inline)) {
          const auto value = load_some(in + i, n - i, center) - center;
          return value * value;
        });
        const C factor = C{1} / std::sqrt(squares / static_cast<C>(n) + static_cast<C>(eps));
        mean[row] = center;
        rstd[row] = factor;
        const T* const next = row + 1 < end ? in + n : in;
        for (std::int64_t i = 0; i < n; i += kLanes<T>) {
          __builtin_prefetch(next + i);  // the row that is read afterwards
          auto value = (load_some(in + i, n - i) - center) * factor * weight_at(weight, i, n);
          if (bias != nullptr) value += load_some(bias + i, n - i);
          store(y + row * n + i, n - i, value);
        }
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
        const T* in = x + row * n;
        const T* dout = dy + row * n;
        const std::int64_t at = row / kRowBlock * n;
        if (row % kRowBlock == 0) {
          if (dweight != nullptr) std::fill_n(weight_sums + at, n, C{0});
          if (dbias != nullptr) std::fill_n(bias_sums + at, n, C{0});
        }
        const C center = mean[row];
        const C factor = rstd[row];
        const C sum = row_sum<T>(n, [&](std::int64_t i) __attribute__((always_inline)) {
          return load_some(dout + i, n - i) * weight_at(weight, i, n);
        });
        const C dot = row_sum<T>(n, [&](std::int64_t i) __attribute__((always_inline)) {
          return load_some(dout + i, n - i) * weight_at(weight, i, n) *
                 (load_some(in + i, n - i) - center);
        });
        const C mean_gradient = sum / static_cast<C>(n);
        const C mean_dot = dot * factor / static_cast<C>(n);
        for (std::int64_t i = 0; i < n; i += kLanes<T>) {
          const std::int64_t rest = n - i;
          const auto gradient = load_some(dout + i, rest);
          const auto normal = (load_some(in + i, rest) - center) * factor;
          if (dweight != nullptr) {
            C* target = weight_sums + at + i;
            store_some(target, rest, load_some(target, rest) + gradient * normal);
          }
          if (dbias != nullptr) {
            C* target = bias_sums + at + i;
            store_some(target, rest, load_some(target, rest) + gradient);
          }
          const auto result =
              (gradient * weight_at(weight, i, n) - mean_gradient - normal * mean_dot) * factor;
          store_some(dx + row * n + i, rest, result);
        }
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
