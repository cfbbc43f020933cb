#pragma once
// How two results of attention with different keys are merged. For any compiler: the caller gives
// the functions of a number.

#include <limits>

namespace tessera::functions {

/// What the two results are multiplied by before they are added, and the log-sum-exp of all keys.
template <class C>
struct MergedAttention {
  C factor;
  C other_factor;
  C log_sum;
};

/// From the two log-sum-exps, with exp and log of Math. Where no key is seen, both factors are 0
/// and the log-sum-exp is minus infinity. Source: Liu et al., Ring Attention (2023).
template <class Math, class C>
constexpr MergedAttention<C> merge_attention(C log_sum, C other_log_sum) {
  constexpr C minus_infinity = -std::numeric_limits<C>::infinity();
  const C maximum = log_sum < other_log_sum ? other_log_sum : log_sum;
  // 0 in the place of minus infinity avoids infinity - infinity.
  const C reference = maximum == minus_infinity ? C{0} : maximum;
  const C weight = Math::exp(log_sum - reference);
  const C other_weight = Math::exp(other_log_sum - reference);
  const C sum = weight + other_weight;
  return {sum > C{0} ? weight / sum : C{0}, sum > C{0} ? other_weight / sum : C{0},
          maximum + Math::log(sum)};
}

}  // namespace tessera::functions
