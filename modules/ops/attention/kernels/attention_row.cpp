#include "attention_row.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"
#include "shared/kernels/simd_math.hpp"

namespace tessera::kernels {
namespace {

/// N lanes: rows of a head are cut into parts of 16, 8, 4, 2 and 1, so that no lane is padding.
template <class C, int N>
using Part = C __attribute__((vector_size(static_cast<std::size_t>(N) * sizeof(C))));

template <int N, class T>
[[gnu::always_inline]] inline Part<Compute<T>, N> load_part(const T* from) {
  using C = Compute<T>;
  Part<C, N> value;
  if constexpr (std::is_same_v<T, C>) {
    std::memcpy(&value, from, sizeof value);
  } else if constexpr (N == simd::kLanes<T>) {
    value = simd::load(from);
  } else {
    for (int i = 0; i < N; ++i) value[i] = static_cast<C>(from[i]);
  }
  return value;
}

/// The sum of the lanes, as a tree: the upper half is added to the lower one.
template <int N, class C>
[[gnu::always_inline]] inline C sum_part(Part<C, N> value) {
  if constexpr (N == 1) {
    return value[0];
  } else {
    Part<C, N / 2> low;
    Part<C, N / 2> high;
    std::memcpy(&low, &value, sizeof low);
    std::memcpy(&high, reinterpret_cast<const std::byte*>(&value) + sizeof low, sizeof high);
    return sum_part<N / 2, C>(low + high);
  }
}

/// q . k over head_dim elements from `begin` on, in parts of at most N.
template <int N, class T>
[[gnu::always_inline]] inline Compute<T> dot(const Compute<T>* q, const T* k, std::int64_t begin,
                                             std::int64_t head_dim) {
  using C = Compute<T>;
  C result{0};
  if (begin + N <= head_dim) {
    Part<C, N> sum{};
    for (; begin + N <= head_dim; begin += N) {
      sum = load_part<N>(q + begin) * load_part<N>(k + begin) + sum;
    }
    result = sum_part<N, C>(sum);
  }
  if constexpr (N > 1) {
    if (begin < head_dim) result += dot<N / 2>(q, k, begin, head_dim);
  }
  return result;
}

/// out[i] = factor * sum over j of p[j] v[j, i] for the columns from `begin` on.
template <int N, class T>
[[gnu::always_inline]] inline void combine(const Compute<T>* p, const T* v, std::int64_t stride,
                                           std::int64_t keys, Compute<T> factor, std::int64_t begin,
                                           std::int64_t head_dim, T* out) {
  using C = Compute<T>;
  for (; begin + N <= head_dim; begin += N) {
    Part<C, N> even{};  // two chains, as one would wait for its own additions
    Part<C, N> odd{};
    std::int64_t j = 0;
    for (; j + 2 <= keys; j += 2) {
      even = load_part<N>(v + j * stride + begin) * p[j] + even;
      odd = load_part<N>(v + (j + 1) * stride + begin) * p[j + 1] + odd;
    }
    if (j < keys) even = load_part<N>(v + j * stride + begin) * p[j] + even;
    const Part<C, N> sum = (even + odd) * factor;
    for (int i = 0; i < N; ++i) out[begin + i] = static_cast<T>(sum[i]);
  }
  if constexpr (N > 1) {
    if (begin < head_dim) combine<N / 2>(p, v, stride, keys, factor, begin, head_dim, out);
  }
}

/// Scores become softcap tanh(score / softcap). `scores` has room for whole vectors.
template <class C>
[[gnu::always_inline]] inline void cap(C* scores, std::int64_t keys, C softcap) {
  for (std::int64_t j = 0; j < keys; j += simd::kLanes<C>) {
    simd::store(scores + j, simd::tanh(simd::load(scores + j) / softcap) * softcap);
  }
}

/// Scores become exp(scores - maximum). `scores` has room for whole vectors.
template <class C>
struct Softmax {
  C maximum;
  C sum;
};

template <class C>
[[gnu::always_inline]] inline Softmax<C> softmax(C* scores, std::int64_t keys) {
  using V = simd::Vector<C>;
  constexpr std::int64_t kLanes = simd::kLanes<C>;
  constexpr C kMinusInfinity = -std::numeric_limits<C>::infinity();
  const std::int64_t padded = (keys + kLanes - 1) / kLanes * kLanes;
  std::fill(scores + keys, scores + padded, kMinusInfinity);
  V top = simd::splat<V>(kMinusInfinity);
  for (std::int64_t j = 0; j < padded; j += kLanes) {
    top = simd::maximum(simd::load(scores + j), top);
  }
  const C maximum = simd::max_lanes(top);
  // Where nothing is seen, 0 in its place avoids infinity - infinity.
  const V reference = simd::splat<V>(maximum == kMinusInfinity ? C{0} : maximum);
  V sum{};
  for (std::int64_t j = 0; j < padded; j += kLanes) {
    const V p = simd::exp_nonpositive(simd::load(scores + j) - reference);
    simd::store(scores + j, p);
    sum += p;
  }
  return {maximum, simd::sum_lanes(sum)};
}

}  // namespace

template <class T, class Lse>
void attention_row(Workspace& workspace, const AttentionShape& shape, const T* q,
                   AttentionStrides q_strides, const T* k, AttentionStrides k_strides, const T* v,
                   AttentionStrides v_strides, T* out, AttentionStrides out_strides,
                   Lse* log_sum_exp) {
  using C = Lse;
  constexpr int kWidest = static_cast<int>(simd::kLanes<C>);
  const std::int64_t heads = shape.kv_heads * shape.group;
  const std::int64_t head_dim = shape.head_dim;
  struct Arrays {
    Arrays(Workspace& w, const AttentionShape& shape)
        : query(w.take<C>(shape.head_dim)), scores(w.take<C>(shape.keys + kWidest)) {}
    C* query;
    C* scores;
  };
  const Workspace::Parts parts =
      workspace.per_thread([&](Workspace& part) { Arrays(part, shape); });
  if (workspace.counts()) return;
  // Less work than this is not worth waking a thread.
  constexpr std::int64_t kGrainWork = 1 << 16;
  const std::int64_t grain = 1 + kGrainWork / (1 + shape.keys * head_dim);
  parallel_for(0, shape.batch * heads, grain, [&](std::int64_t begin, std::int64_t end) {
    Workspace part = parts.mine();
    const Arrays arrays(part, shape);
    C* const query = arrays.query;
    C* const scores = arrays.scores;
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t entry = task / heads;
        const std::int64_t head = task % heads;
        const std::int64_t kv_head = head / shape.group;
        const T* q_row = q + entry * q_strides.batch + head * q_strides.head;
        const T* keys = k + entry * k_strides.batch + kv_head * k_strides.head;
        const T* values = v + entry * v_strides.batch + kv_head * v_strides.head;
        for (std::int64_t i = 0; i < head_dim; ++i) {
          query[i] = static_cast<C>(q_row[i]) * static_cast<C>(shape.scale);
        }
        for (std::int64_t j = 0; j < shape.keys; ++j) {
          scores[j] = dot<kWidest>(query, keys + j * k_strides.time, 0, head_dim);
        }
        if (shape.softcap != 0) cap(scores, shape.keys, static_cast<C>(shape.softcap));
        const Softmax<C> seen = softmax(scores, shape.keys);
        const C factor = seen.sum > C{0} ? C{1} / seen.sum : C{0};
        combine<kWidest>(scores, values, v_strides.time, shape.keys, factor, 0, shape.values(),
                         out + entry * out_strides.batch + head * out_strides.head);
        log_sum_exp[task] = seen.maximum + std::log(seen.sum);
      }
    });
  });
}

template decltype(attention_row<float, float>) attention_row<float, float>;
template decltype(attention_row<double, double>) attention_row<double, double>;
template decltype(attention_row<BFloat16, float>) attention_row<BFloat16, float>;
template decltype(attention_row<Half, float>) attention_row<Half, float>;

}  // namespace tessera::kernels
