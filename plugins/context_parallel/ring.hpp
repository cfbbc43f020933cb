#pragma once
// Attention of a sequence whose chunks are on the ranks of a ring.
// The importing source must import tessera.tensor and tessera.ops.

#include <cstdint>
#include <string_view>

#include "ring_order.hpp"

namespace context {

struct RingOptions {
  double scale = 0;  // see ops::AttentionBlockOptions
  double softcap = 0;
  Sight sight;
  bool balance = true;
};

/// The mesh axis of the ring.
struct RingAxis {
  tessera::ops::GroupArgument group;
  std::string_view name;  // for the report of what was communicated
};

/// softmax(q k^T) v of this rank's queries with the keys of all ranks, whose tensors are of the
/// same shapes: q [B, T, H, D], k [B, T, KV, D], v [B, T, KV, Dv], chunks of the sequence in the
/// order of the ranks, as plain tensors; documents [B, T] of the queries, or undefined. Keys and
/// values move around the ring while results are computed; backward moves them again, and their
/// gradients with them. Source: Liu et al., Ring Attention (2023).
tessera::Tensor ring_attention(const tessera::Tensor& q, const tessera::Tensor& k,
                               const tessera::Tensor& v, const tessera::Tensor& documents,
                               const RingOptions& options, const RingAxis& axis);

}  // namespace context
