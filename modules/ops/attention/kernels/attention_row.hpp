#pragma once
// Attention of one query for each head: what generation computes for each token.

#include "attention.hpp"

namespace tessera::kernels {

/// attention_forward for shape.queries = 1 without a mask; the query sees all keys. The work is one
/// pass over keys and one over values; the tiles of attention_forward would compute 16 or more
/// queries for the one.
template <class T, class Lse>
void attention_row(Workspace& workspace, const AttentionShape& shape, const T* q,
                   AttentionStrides q_strides, const T* k, AttentionStrides k_strides, const T* v,
                   AttentionStrides v_strides, T* out, AttentionStrides out_strides,
                   Lse* log_sum_exp);

// Instantiated as attention_forward.

}  // namespace tessera::kernels
