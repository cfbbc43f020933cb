#pragma once
// Which form of context parallel attention waits less for communication.
// The importing source must import tessera.placement.

#include <cstdint>

#include "ring_order.hpp"

namespace context {

/// One call of attention, of a rank's part.
struct AttentionSize {
  std::int64_t ranks = 1;  // of the axis
  std::int64_t batch = 0;
  std::int64_t tokens = 0;    // of each sequence
  std::int64_t heads = 0;     // before an exchange of them
  std::int64_t kv_heads = 0;  // also before
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t element_bytes = 4;
  std::int64_t sum_bytes = 4;  // of an element of gradients while they are summed
  Sight sight = {};
  bool balance = true;
  friend bool operator==(const AttentionSize&, const AttentionSize&) = default;
};

/// Seconds of a forward and its backward in which a rank only communicates.
struct ExposedSeconds {
  double ring = 0;
  double all_to_all = 0;
};

/// With a link of the axis, and so many floating-point operations of a rank in a second. Exchanges
/// of heads are not hidden. A hop of a ring is, as far as its block takes as long to compute: 2
/// products in forward, 5 in backward, where gradients move too; and exchanges of halves are, as
/// far as what the rank computes beside them does.
ExposedSeconds exposed(const AttentionSize& size, const tessera::Link& link, double flops);

}  // namespace context
