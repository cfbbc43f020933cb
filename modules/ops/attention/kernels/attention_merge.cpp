#include "attention_merge.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {

template <class T, class C>
void attention_merge(const AttentionMerge<T, C>& x) {
  constexpr C kMinusInfinity = -std::numeric_limits<C>::infinity();
  constexpr std::int64_t kGrainWork = 1 << 14;
  const std::int64_t grain = 1 + kGrainWork / (1 + x.width);
  parallel_for(0, x.batch * x.queries * x.heads, grain, [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t head = row % x.heads;
        const std::int64_t query = row / x.heads % x.queries;
        const std::int64_t entry = row / x.heads / x.queries;
        const std::int64_t at = (entry * x.heads + head) * x.queries + query;
        const C maximum = std::max(x.lse[at], x.other_lse[at]);
        // 0 in the place of minus infinity avoids infinity - infinity.
        const C reference = maximum == kMinusInfinity ? C{0} : maximum;
        const C weight = std::exp(x.lse[at] - reference);
        const C other_weight = std::exp(x.other_lse[at] - reference);
        const C sum = weight + other_weight;
        const C factor = sum > C{0} ? weight / sum : C{0};
        const C other_factor = sum > C{0} ? other_weight / sum : C{0};
        const C* const y = x.y + row * x.width;
        const T* const other = x.other + row * x.width;
        C* const out = x.out + row * x.width;
        for (std::int64_t i = 0; i < x.width; ++i) {
          out[i] = factor * y[i] + other_factor * static_cast<C>(other[i]);
        }
        x.out_lse[at] = maximum + std::log(sum);
      }
    });
  });
}

template void attention_merge(const AttentionMerge<float, float>&);
template void attention_merge(const AttentionMerge<double, double>&);
template void attention_merge(const AttentionMerge<BFloat16, float>&);
template void attention_merge(const AttentionMerge<Half, float>&);

}  // namespace tessera::kernels
