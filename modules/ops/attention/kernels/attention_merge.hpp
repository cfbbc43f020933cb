#pragma once
// The results of two blocks of keys of one attention, merged.

#include <cstdint>
#include <tessera/half.hpp>

namespace tessera::kernels {

/// y [batch, queries, heads, width] of some keys with log-sum-exps lse [batch, heads, queries], and
/// the same of other keys, all contiguous. The results are those of all keys: each y is weighted by
/// exp(lse). Where no key is seen, 0 and minus infinity. Source: Liu et al., Ring Attention (2023).
template <class T, class C>
struct AttentionMerge {
  std::int64_t batch;
  std::int64_t queries;
  std::int64_t heads;
  std::int64_t width;
  const C* y;
  const C* lse;
  const T* other;
  const C* other_lse;
  C* out;
  C* out_lse;
};

template <class T, class C>
void attention_merge(const AttentionMerge<T, C>& x);

// Instantiated for T/C: float/float, double/double, BFloat16/float, Half/float.

}  // namespace tessera::kernels
