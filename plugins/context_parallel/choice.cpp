#include <algorithm>
#include <cstdint>
#include <vector>

import tessera.base;
import tessera.mesh;
import tessera.placement;

#include "choice.hpp"

namespace context {
namespace {

/// Pairs of queries and keys that the busiest rank computes in a step of the ring: half of a block
/// on the diagonal, the whole of any other one that is seen.
double pairs_of(const RingOrder& order, const Sight& sight, std::int64_t ranks, std::int64_t step) {
  double most = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::vector<Piece> theirs = order.pieces_of(order.owner(rank, step));
    double pairs = 0;
    for (const Piece& queries : order.pieces_of(rank)) {
      for (const Piece& keys : theirs) {
        const double block =
            order.sees(queries, keys) ? static_cast<double>(queries.length * keys.length) : 0;
        const bool diagonal = sight.causal && queries.position == keys.position;
        const double whole = diagonal ? block / 2 : block;
        pairs += sight.window == 0
                     ? whole
                     : std::min(whole, static_cast<double>(queries.length * sight.window));
      }
    }
    most = std::max(most, pairs);
  }
  return most;
}

}  // namespace

ExposedSeconds exposed(const AttentionSize& size, const tessera::Link& link, double flops) {
  const auto seconds_of = [&](double calls, double bytes) {
    return calls * link.latency + bytes / link.bandwidth;
  };
  const auto product = [](auto... factors) { return (static_cast<double>(factors) * ...); };
  const double tokens = product(size.batch, size.tokens);
  const double queries = tokens * product(size.heads, size.key_dim);
  const double results = tokens * product(size.heads, size.value_dim);
  const double keys = tokens * product(size.kv_heads, size.key_dim + size.value_dim);
  const auto element = static_cast<double>(size.element_bytes);
  const auto sum = static_cast<double>(size.sum_bytes);

  ExposedSeconds seconds;
  const double others = product(size.ranks - 1) / product(size.ranks);
  seconds.all_to_all = 2 * seconds_of(4, (queries + keys + results) * element * others);

  const RingOrder order(size.ranks, size.tokens, size.sight, size.balance);
  const bool balanced = order.is_balanced();
  const double hop = seconds_of(1, keys * element);
  const double hop_of_gradients = seconds_of(1, keys * sum);
  const double of_pair = 2 * product(size.batch, size.heads, size.key_dim + size.value_dim) / flops;
  // Of the own first half alone, which hides exchanges of halves and no hop.
  const double own = balanced ? of_pair * product(order.kept(), order.kept()) / 2 : 0;
  double second_keys = balanced ? seconds_of(2, keys * sum / 2) : 0;  // their gradients
  double computing = 0;
  for (std::int64_t step = 0; step < order.steps(); ++step) {
    computing = of_pair * pairs_of(order, size.sight, size.ranks, step);
    if (step + 1 < order.steps()) {
      const double beside = step == 0 ? computing - own : computing;
      seconds.ring += std::max(0.0, hop - beside);
      seconds.ring += std::max(0.0, hop + hop_of_gradients + second_keys - 2.5 * beside);
      second_keys = 0;
    }
  }
  if (balanced) {
    const double parts = size.kv_heads > 1 ? 2 : 1;  // of heads, one behind the other
    const double returning = seconds_of(1, results * element / 2 / parts);
    seconds.ring += std::max(0.0, seconds_of(2, (queries + keys) * element / 2) - own);
    seconds.ring += returning + (parts - 1) * std::max(0.0, returning - computing / 2);
    seconds.ring += std::max(0.0, seconds_of(2, results * element / 2) - 2.5 * own / parts);
    seconds.ring +=
        std::max(0.0, seconds_of(1, queries * element / 2) - (parts - 1) * 2.5 * own / parts);
  }
  return seconds;
}

}  // namespace context
