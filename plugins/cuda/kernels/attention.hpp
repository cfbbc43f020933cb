// Causal attention: which keys a query sees, and what becomes of its scores.
#pragma once
#include <cstdint>

#include "kernels/arguments.hpp"
#include "kernels/math.hpp"

namespace tessera::cuda {

/// The keys that a query sees: from `first` to before `end`; both do not fall from one query to the
/// next.
struct KeyRange {
  std::int64_t first, end;
};

/// Documents that are wrong, which the host gets to know later, give some range of keys.
inline __device__ KeyRange keys_of(const AttentionArguments& a, std::int64_t batch,
                                   std::int64_t query) {
  std::int64_t end = query + a.shift + 1, first = 0;
  if (a.documents.data != nullptr) {
    first = static_cast<const std::int64_t*>(
                a.documents.data)[batch * a.documents.batch + query * a.documents.time] -
            a.first_key;
  }
  if (a.window != 0 && end - a.window > first) first = end - a.window;
  end = end < 0 ? 0 : end < a.keys ? end : a.keys;
  return {first < 0 ? 0 : first < end ? first : end, end};
}

/// The queries that may see a key, from `first` to before `end`, by their numbers alone: a document
/// may hide the key from the last of them.
struct QueryRange {
  std::int64_t first, end;
};
inline __device__ QueryRange queries_of(const AttentionArguments& a, std::int64_t key) {
  const std::int64_t first = key - a.shift;
  const std::int64_t end =
      a.window != 0 && first + a.window < a.queries ? first + a.window : a.queries;
  return {first > 0 ? first : 0, end};
}

/// From products q . k to scores.
template <class C>
struct ScoreFunction {
  C scale, softcap;
  explicit __device__ ScoreFunction(const AttentionArguments& a)
      : scale(static_cast<C>(a.scale)), softcap(static_cast<C>(a.softcap)) {}

  __device__ C score(C product) const {
    const C scaled = scale * product;
    return softcap == 0 ? scaled : softcap * math::tanh(scaled / softcap);
  }
  /// The cap's slope where a score is, d score / d (scale product).
  __device__ C slope(C score) const {
    if (softcap == 0) return 1;
    const C share = score / softcap;
    return 1 - share * share;
  }
};

}  // namespace tessera::cuda
