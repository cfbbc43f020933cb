#include "attention_merge.hpp"

#include <cmath>
#include <cstdint>

#include "attention/functions/merge.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

struct Math {
  template <class C>
  static C exp(C x) {
    return std::exp(x);
  }
  template <class C>
  static C log(C x) {
    return std::log(x);
  }
};

}  // namespace

template <class T, class C>
void attention_merge(const AttentionMerge<T, C>& x) {
  constexpr std::int64_t kGrainWork = 1 << 14;
  const std::int64_t grain = 1 + kGrainWork / (1 + x.width);
  parallel_for(0, x.batch * x.queries * x.heads, grain, [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t head = row % x.heads;
        const std::int64_t query = row / x.heads % x.queries;
        const std::int64_t entry = row / x.heads / x.queries;
        const std::int64_t at = (entry * x.heads + head) * x.queries + query;
        const auto merged = functions::merge_attention<Math>(x.lse[at], x.other_lse[at]);
        const C* const y = x.y + row * x.width;
        const T* const other = x.other + row * x.width;
        C* const out = x.out + row * x.width;
        for (std::int64_t i = 0; i < x.width; ++i) {
          out[i] = merged.factor * y[i] + merged.other_factor * static_cast<C>(other[i]);
        }
        x.out_lse[at] = merged.log_sum;
      }
    });
  });
}

template void attention_merge(const AttentionMerge<float, float>&);
template void attention_merge(const AttentionMerge<double, double>&);
template void attention_merge(const AttentionMerge<BFloat16, float>&);
template void attention_merge(const AttentionMerge<Half, float>&);

}  // namespace tessera::kernels
