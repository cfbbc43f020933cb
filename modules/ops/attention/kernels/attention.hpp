#pragma once
// Grouped-query attention in tiles: scores are never stored for more than one tile of keys.

#include <cstdint>
#include <tessera/half.hpp>

#include "shared/kernels/philox.hpp"
#include "shared/kernels/workspace.hpp"

namespace tessera::kernels {

/// Strides, in elements, of a [batch, time, head, head_dim] array whose last dim is contiguous.
struct AttentionStrides {
  std::int64_t batch = 0;
  std::int64_t time = 0;
  std::int64_t head = 0;

  /// Strides of the contiguous array.
  static constexpr AttentionStrides contiguous(std::int64_t times, std::int64_t heads,
                                               std::int64_t head_dim) {
    return {times * heads * head_dim, heads * head_dim, head_dim};
  }
};

/// q: [batch, queries, kv_heads * group, head_dim]; k: [batch, keys, kv_heads, head_dim]; v:
/// [batch, keys, kv_heads, value_dim]; out: [batch, queries, kv_heads * group, value_dim]. Query
/// head h reads key/value head h / group. When causal, query i sees the keys j <= i + keys -
/// queries (so a cache of earlier keys may precede), or with upper_left the keys j <= i; else all
/// keys. A query that sees no key gives 0, and a log-sum-exp of minus infinity. Any head_dim and
/// value_dim from 1 to 512 works.
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t kv_heads = 0;
  std::int64_t group = 1;
  std::int64_t head_dim = 0;
  double scale = 1.0;  // of q . k before the softmax; usually 1 / sqrt(head_dim)
  bool causal = true;
  bool upper_left = false;     // of a causal one
  std::int64_t value_dim = 0;  // 0: head_dim
  /// Of a causal one: a query sees at most so many keys, of which its own is the last; 0: any
  /// number.
  std::int64_t window = 0;
  /// A scaled score s becomes softcap tanh(s / softcap); 0: it stays.
  double softcap = 0;
  /// Of a causal one with as many queries as keys: the rows are documents one after the other, and
  /// a query sees keys of its own only. `documents` [batch, queries] has the number of the first
  /// token of each token's document; it is null while the workspace is counted.
  bool has_documents = false;
  const std::int64_t* documents = nullptr;
  /// Of a causal one that is a block of a longer attention: the positions of its first query and
  /// key, by which query i sees the keys j <= i + first_query - first_key. `documents` are
  /// positions too.
  bool is_block = false;
  std::int64_t first_query = 0;
  std::int64_t first_key = 0;

  [[nodiscard]] std::int64_t values() const { return value_dim == 0 ? head_dim : value_dim; }
};

/// Changes of scores and probabilities on their way; T is the operands' type, or that of the
/// gradient. Nothing by default.
template <class T>
struct AttentionMask {
  const T* added = nullptr;                // to the scaled scores
  const std::uint8_t* allowed = nullptr;   // 0: the query does not see the key
  bool present = false;                    // one of them, also where counting leaves them null
  std::int64_t strides[4] = {0, 0, 0, 0};  // of either: batch, head, query, key

  /// Each probability is dropped with probability `dropout`, by the number of its global element in
  /// [batches, heads_in_all, queries_in_all, keys], of which the arrays hold those from
  /// first_batch, first_head and first_query on. The others grow by 1 / (1 - dropout).
  double dropout = 0;
  RandomRange random;
  std::int64_t first_batch = 0;
  std::int64_t first_head = 0;
  std::int64_t heads_in_all = 0;
  std::int64_t first_query = 0;
  std::int64_t queries_in_all = 0;

  T* gradient = nullptr;  // of the scaled scores, [batch, heads, queries, keys] (backward only)

  bool changes_scores() const { return present; }
};

/// out = softmax(scale q k^T) v and log_sum_exp [batch, heads, queries] of the scaled scores,
/// contiguous. Compute<T> is float, and double for double. Takes a few tiles for each thread. The
/// output aliases no input. Source: Dao, FlashAttention-2 (2023), algorithm 1.
template <class T, class Lse>
void attention_forward(Workspace& workspace, const AttentionShape& shape, const T* q,
                       AttentionStrides q_strides, const T* k, AttentionStrides k_strides,
                       const T* v, AttentionStrides v_strides, T* out, AttentionStrides out_strides,
                       Lse* log_sum_exp, const AttentionMask<T>& mask = {});

/// The arguments of attention_backward. dq, dk and dv are overwritten; they alias nothing else.
template <class T, class Lse>
struct AttentionGradient {
  const T* q;
  AttentionStrides q_strides;
  const T* k;
  AttentionStrides k_strides;
  const T* v;
  AttentionStrides v_strides;
  const T* out;  // of the forward
  AttentionStrides out_strides;
  const Lse* log_sum_exp;  // of the forward, [batch, heads, queries]
  const T* dout;
  AttentionStrides dout_strides;
  T* dq;
  AttentionStrides dq_strides;
  T* dk;
  AttentionStrides dk_strides;
  T* dv;
  AttentionStrides dv_strides;
  AttentionMask<T> mask{};              // of the forward
  std::int64_t log_sum_exp_stride = 0;  // from one head to the next; 0: queries
  /// dout . out of each query, with the strides of log_sum_exp; null: it is computed from `out`,
  /// which may be null otherwise.
  const Lse* delta = nullptr;
};

/// Gradients of attention_forward, from probabilities recomputed in tiles; sums over the query
/// heads of a group are in head order. Takes several copies of a group's queries for each thread.
/// Source: FlashAttention-2, algorithm 2.
template <class T, class Lse>
void attention_backward(Workspace& workspace, const AttentionShape& shape,
                        const AttentionGradient<T, Lse>& arguments);

// Instantiated for T/Lse: float/float, double/double, BFloat16/float, Half/float.

}  // namespace tessera::kernels
