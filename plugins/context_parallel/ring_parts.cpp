#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;

#include "ring_parts.hpp"

namespace context {

using namespace tessera;

namespace {

/// Reports a call that brought this rank a tensor.
void report(const RingAxis& axis, const char* operation, const Tensor& arrived) {
  if (communication_reported()) {
    record_communication(
        {.operation = operation,
         .axis = std::string(axis.name),
         .bytes = arrived.numel() * static_cast<std::int64_t>(size_of(arrived.dtype())),
         .where = ring_name});
  }
}

}  // namespace

Ring::Ring(const RingOptions& wanted, const RingAxis& along, const Tensor& q, const Tensor& k)
    : options(wanted),
      axis(along),
      order(along.group.size(), q.size(1), wanted.sight, wanted.balance),
      rank(along.group.rank()),
      pieces(order.pieces_of(rank)),
      kv_heads(k.size(2)),
      queries_per_key(q.size(2) / k.size(2)) {}

Tensor Ring::joined(const Pieces& x, int dim) const {
  return x.size() == 1 ? x[0] : ops::cat(std::span<const Tensor>(x), dim);
}

ops::PendingTensor Ring::mirrored(const Tensor& x, std::int64_t by) const {
  report(axis, "all_to_all", x);
  return ops::mirror_async(x, by, axis.group);
}

ops::PendingTensor Ring::sent(const Tensor& x, std::int64_t by) const {
  report(axis, "shift", x);
  return ops::shift_async(x, by, axis.group);
}

std::vector<Piece> Ring::own_halves() const {
  if (pieces.size() > 1 || pieces[0].length < 2) {
    return pieces;
  }
  const Piece& own = pieces[0];
  const std::int64_t half = own.length / 2;
  return {
      {.position = own.position, .first = own.first, .length = half},
      {.position = own.position + half, .first = own.first + half, .length = own.length - half}};
}

std::vector<Heads> Ring::halves_of_heads() const {
  if (kv_heads == 1) {
    return {all_heads()};
  }
  const std::int64_t half = kv_heads / 2;
  return {{.first = 0, .count = half}, {.first = half, .count = kv_heads - half}};
}

Tensor Ring::of_queries(const Tensor& x, const Heads& heads, int dim) const {
  return heads.count == kv_heads
             ? x
             : ops::narrow(x, dim, heads.first * queries_per_key, heads.count * queries_per_key);
}

ops::AttentionBlockOptions Ring::block(const Piece& queries, const Piece& keys,
                                       const Tensor& documents) const {
  return {.scale = options.scale,
          .window = options.sight.window,
          .softcap = options.softcap,
          .causal = options.sight.causal,
          .first_query = queries.position,
          .first_key = keys.position,
          .documents = documents};
}

ExchangedTokens::ExchangedTokens(const Ring& ring, const Tensor& x, int dim) : first_(x) {
  if (x && ring.order.is_balanced()) {
    const std::int64_t kept = ring.order.kept();
    first_ = ops::narrow(x, dim, 0, kept);
    second_ = ring.mirrored(ops::narrow(x, dim, kept, x.size(dim) - kept));
  }
}

namespace {

Tensor some_of(const Tensor& both, const Piece& piece, const Heads& heads) {
  const Tensor tokens = ops::narrow(both, 1, piece.first, piece.length);
  return heads.count == both.size(2) ? tokens : ops::narrow(tokens, 2, heads.first, heads.count);
}

}  // namespace

Tensor KeysAndValues::keys(const Piece& piece, const Heads& heads) const {
  return ops::narrow(some_of(both, piece, heads), 3, 0, key_dim);
}

Tensor KeysAndValues::values(const Piece& piece, const Heads& heads) const {
  return ops::narrow(some_of(both, piece, heads), 3, key_dim, both.size(3) - key_dim);
}

void around(const Ring& ring, KeysAndValues here,
            const std::function<void(std::int64_t step, const KeysAndValues& here,
                                     const std::vector<Piece>& theirs)>& body) {
  const std::int64_t steps = ring.order.steps();
  for (std::int64_t step = 0; step < steps; ++step) {
    std::optional<ops::PendingTensor> next;
    if (step + 1 < steps) {
      next = ring.sent(here.both, 1);
    }
    body(step, here, ring.order.pieces_of(ring.order.owner(ring.rank, step)));
    if (next) {
      here.both = next->wait();
    }
  }
}

}  // namespace context
