#include "cross_entropy.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "reduce/kernels/states.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

using simd::kLanes;
using simd::load_some;

std::int64_t row_grain(std::int64_t n) { return 1 + (1 << 13) / (n + 1); }

template <class C>
struct MaximumAndSum {
  C maximum;
  C sum;  // of exp(x - maximum)
};

template <class T>
[[gnu::always_inline]] inline MaximumAndSum<Compute<T>> scan(std::int64_t n, const T* x) {
  using C = Compute<T>;
  constexpr std::int64_t kRun = 1 << 11;  // elements that are added at once
  states::LogSum all;
  C top = -std::numeric_limits<C>::infinity();
  for (std::int64_t i = 0; i < n; i += kRun)
    top = std::max(top, all.add_run(x + i, std::min(kRun, n - i)));
  const double distance = all.reference - static_cast<double>(top);
  // Infinite ones are equal.
  return {top, static_cast<C>(distance == distance ? all.sum * std::exp(distance) : all.sum)};
}

template <class T>
bool here(const CrossEntropyShape& shape, std::int64_t target) {
  return target >= shape.vocab_start && target < shape.vocab_start + shape.vocab;
}

}  // namespace

template <class T>
std::int64_t cross_entropy_forward(const CrossEntropyShape& shape, const T* logits,
                                   const std::int64_t* targets, Compute<T>* loss,
                                   Compute<T>* log_sum_exp) {
  using C = Compute<T>;
  parallel_for(0, shape.rows, row_grain(shape.vocab), [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x = logits + row * shape.vocab;
        const auto [maximum, sum] = scan(shape.vocab, x);
        const C total = maximum + std::log(sum);
        const std::int64_t target = targets[row];
        log_sum_exp[row] = total;
        if (target == shape.ignore_index) {
          loss[row] = C{0};
        } else if (here<T>(shape, target)) {
          loss[row] = total - static_cast<C>(x[target - shape.vocab_start]);
        } else {
          loss[row] = std::numeric_limits<C>::quiet_NaN();
        }
      }
    });
  });
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    if (targets[row] != shape.ignore_index && !here<T>(shape, targets[row])) return row;
  }
  return -1;
}

template <class T>
void cross_entropy_partial(const CrossEntropyShape& shape, const T* logits,
                           const std::int64_t* targets, Compute<T>* maximum, Compute<T>* sum,
                           Compute<T>* picked) {
  using C = Compute<T>;
  parallel_for(0, shape.rows, row_grain(shape.vocab), [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x = logits + row * shape.vocab;
        const auto result = scan(shape.vocab, x);
        const std::int64_t target = targets[row];
        const bool counts = target != shape.ignore_index && here<T>(shape, target);
        maximum[row] = result.maximum;
        sum[row] = result.sum;
        picked[row] = counts ? static_cast<C>(x[target - shape.vocab_start]) : C{0};
      }
    });
  });
}

template <class T>
void cross_entropy_backward(const CrossEntropyShape& shape, const T* logits,
                            const std::int64_t* targets, const Compute<T>* log_sum_exp,
                            const Compute<T>* dloss, T* dlogits) {
  using C = Compute<T>;
  const std::int64_t n = shape.vocab;
  parallel_for(0, shape.rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t target = targets[row];
        T* out = dlogits + row * n;
        if (target == shape.ignore_index) {
          for (std::int64_t i = 0; i < n; ++i) out[i] = T{};
          continue;
        }
        const T* x = logits + row * n;
        const bool counts = here<T>(shape, target);
        const std::int64_t at = counts ? target - shape.vocab_start : 0;
        // Taken before the row is overwritten, which may be in place.
        const C picked = counts ? static_cast<C>(x[at]) : C{0};
        for (std::int64_t i = 0; i < n; i += kLanes<T>) {
          simd::store_some(out + i, n - i,
                           simd::exp(load_some(x + i, n - i) - log_sum_exp[row]) * dloss[row]);
        }
        if (counts) out[at] = static_cast<T>(std::expm1(picked - log_sum_exp[row]) * dloss[row]);
      }
    });
  });
}

template decltype(cross_entropy_forward<float>) cross_entropy_forward<float>;
template decltype(cross_entropy_forward<double>) cross_entropy_forward<double>;
template decltype(cross_entropy_forward<BFloat16>) cross_entropy_forward<BFloat16>;
template decltype(cross_entropy_forward<Half>) cross_entropy_forward<Half>;
template decltype(cross_entropy_partial<float>) cross_entropy_partial<float>;
template decltype(cross_entropy_partial<double>) cross_entropy_partial<double>;
template decltype(cross_entropy_partial<BFloat16>) cross_entropy_partial<BFloat16>;
template decltype(cross_entropy_partial<Half>) cross_entropy_partial<Half>;
template decltype(cross_entropy_backward<float>) cross_entropy_backward<float>;
template decltype(cross_entropy_backward<double>) cross_entropy_backward<double>;
template decltype(cross_entropy_backward<BFloat16>) cross_entropy_backward<BFloat16>;
template decltype(cross_entropy_backward<Half>) cross_entropy_backward<Half>;

}  // namespace tessera::kernels
