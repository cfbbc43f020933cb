#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;

#include "ring.hpp"

namespace context {
namespace {

using namespace tessera;

constexpr const char* name = "ring_attention";

DType sums_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// Reports a call that brought this rank a tensor.
void report(const RingAxis& axis, const char* operation, const Tensor& arrived) {
  if (communication_reported()) {
    record_communication(
        {.operation = operation,
         .axis = std::string(axis.name),
         .bytes = arrived.numel() * static_cast<std::int64_t>(size_of(arrived.dtype())),
         .where = name});
  }
}

/// One piece for each of the order's, along the tokens' dim.
using Pieces = std::vector<Tensor>;

/// What all ranks of a ring agree on, and this rank's part.
struct Ring {
  Ring(const RingOptions& wanted, const RingAxis& along, std::int64_t tokens)
      : options(wanted),
        axis(along),
        order(along.group.size(), tokens, wanted.sight, wanted.balance),
        rank(along.group.rank()),
        pieces(order.pieces_of(rank)) {}

  /// The rank's tokens as the order has them; `dim` is that of tokens. Undefined: none.
  Pieces ordered(const Tensor& x, int dim) const {
    if (!x || !order.is_balanced()) {
      return Pieces(pieces.size(), x);
    }
    const std::int64_t kept = order.kept();
    return {ops::narrow(x, dim, 0, kept), mirrored(ops::narrow(x, dim, kept, x.size(dim) - kept))};
  }
  /// The way back.
  Tensor restored(const Pieces& x, int dim) const {
    return order.is_balanced() ? ops::cat({{x[0], mirrored(x[1])}}, dim) : x[0];
  }
  Tensor joined(const Pieces& x, int dim) const {
    return x.size() == 1 ? x[0] : ops::cat(std::span<const Tensor>(x), dim);
  }
  Tensor mirrored(const Tensor& x) const {
    Tensor other = ops::mirror(x, axis.group);
    report(axis, "all_to_all", other);
    return other;
  }
  ops::PendingTensor sent(const Tensor& x, std::int64_t by) const {
    report(axis, "shift", x);
    return ops::shift_async(x, by, axis.group);
  }
  /// A rank's own keys in two parts, of which the later one is seen by fewer of its queries; one
  /// part where there is one key.
  std::vector<Piece> own_halves() const {
    if (pieces.size() > 1 || pieces[0].length < 2) {
      return pieces;
    }
    const Piece& own = pieces[0];
    const std::int64_t half = own.length / 2;
    return {
        {.position = own.position, .first = own.first, .length = half},
        {.position = own.position + half, .first = own.first + half, .length = own.length - half}};
  }

  ops::AttentionBlockOptions block(const Piece& queries, const Piece& keys,
                                   const Tensor& documents) const {
    return {.scale = options.scale,
            .window = options.sight.window,
            .softcap = options.softcap,
            .causal = options.sight.causal,
            .first_query = queries.position,
            .first_key = keys.position,
            .documents = documents};
  }

  RingOptions options;
  RingAxis axis;
  RingOrder order;
  std::int64_t rank;
  std::vector<Piece> pieces;
};

/// Keys and values of a chunk in one tensor [B, T, KV, D + Dv], which moves.
struct KeysAndValues {
  Tensor both;
  std::int64_t key_dim;

  Tensor keys(const Piece& piece) const {
    return ops::narrow(ops::narrow(both, 1, piece.first, piece.length), 3, 0, key_dim);
  }
  Tensor values(const Piece& piece) const {
    return ops::narrow(ops::narrow(both, 1, piece.first, piece.length), 3, key_dim,
                       both.size(3) - key_dim);
  }
};

/// Calls body(keys and values that are here, whose pieces) once for each step, while those of the
/// next one are on their way.
template <class Body>
void around(const Ring& ring, KeysAndValues here, const Body& body) {
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

/// What forward leaves for backward.
struct Saved {
  Ring ring;
  std::int64_t key_dim;
  std::vector<SavedTensor> q;  // ordered pieces
  std::vector<SavedTensor> documents;
  std::vector<SavedTensor> lse;
  SavedTensor both;  // keys and values, ordered
  SavedTensor y;     // the result
};

/// The results of a rank's pieces, in the type of sums, with their log-sum-exps.
std::vector<ops::AttentionBlock> results_of(const Ring& ring, const Pieces& q,
                                            const Pieces& documents, const KeysAndValues& own) {
  std::vector<ops::AttentionBlock> results(q.size());
  around(ring, own, [&](std::int64_t, const KeysAndValues& here, const std::vector<Piece>& theirs) {
    for (std::size_t i = 0; i < q.size(); ++i) {
      for (const Piece& keys : theirs) {
        if (!ring.order.sees(ring.pieces[i], keys)) {
          continue;
        }
        ops::AttentionBlock block =
            ops::attention_block(q[i], here.keys(keys), here.values(keys),
                                 ring.block(ring.pieces[i], keys, documents[i]));
        if (results[i].y) {
          results[i] = ops::attention_merge(results[i], block);
        } else {
          results[i] = {.y = ops::cast(block.y, sums_of(block.y.dtype())), .lse = block.lse};
        }
      }
    }
  });
  return results;
}

void add_into(Tensor& sum, const Tensor& term) {
  const Tensor wide = ops::cast(term, sums_of(term.dtype()));
  if (sum) {
    ops::add_(sum, wide);
  } else {
    sum = wide;
  }
}

/// Gradients of the queries of a rank's pieces, and those of keys and values. These travel with the
/// keys of other ranks, and home when all have been there; meanwhile each rank computes what its
/// queries add to the next ones: first a part of its own keys, behind which those of others come,
/// and last the rest of its own, behind which the gradients come home. All in the type of sums.
class RingGradients {
 public:
  RingGradients(const Saved& saved, const Tensor& dy) : saved_(saved), ring_(saved.ring) {
    const Tensor& y = saved.y.get(name);
    const DType sums = sums_of(y.dtype());
    const Tensor products = ops::sum(ops::mul(ops::cast(dy, sums), ops::cast(y, sums)), {3});
    const Tensor delta = ops::contiguous(ops::transpose(products, 1, 2));
    dy_ = ring_.ordered(dy, 1);
    delta_ = ring_.ordered(delta, 2);
    dq_.resize(dy_.size());
    const KeysAndValues own{.both = saved.both.get(name), .key_dim = saved.key_dim};
    std::vector<Piece> halves = ring_.own_halves();
    Pieces of_own(halves.size());
    const std::int64_t steps = ring_.order.steps();
    around(ring_, own,
           [&](std::int64_t step, const KeysAndValues& here, const std::vector<Piece>& theirs) {
             if (step > 0) {
               take_step(here, theirs, step + 1 < steps ? 1 : -step);
             } else if (halves.size() > 1) {
               of_own[1] = added_here(own, {&halves[1], 1});
             }
           });
    of_own[0] = added_here(own, {halves.data(), 1});
    of_both_ = ring_.joined(of_own, 1);
    if (arriving_) {
      of_both_ = ops::add(arriving_->wait(), of_both_);
    }
  }

  Tensor queries() const { return ring_.restored(dq_, 1); }
  /// Of keys and values, [B, T, KV, D + Dv].
  Tensor keys_and_values() const {
    if (!ring_.order.is_balanced()) {
      return of_both_;
    }
    const std::int64_t kept = ring_.order.kept();
    return ring_.restored({ops::narrow(of_both_, 1, 0, kept),
                           ops::narrow(of_both_, 1, kept, of_both_.size(1) - kept)},
                          1);
  }

 private:
  /// Adds to the gradients of keys that are here, and sends them on.
  void take_step(const KeysAndValues& here, const std::vector<Piece>& theirs, std::int64_t by) {
    const bool any = std::ranges::any_of(theirs, [&](const Piece& keys) { return is_seen(keys); });
    // Keys that nobody here sees pass by.
    Tensor added = any || !arriving_ ? added_here(here, theirs) : Tensor();
    if (arriving_) {
      const Tensor& before = arriving_->wait();
      added = added ? ops::add(before, added) : before;
    }
    arriving_ = ring_.sent(added, by);
  }

  bool is_seen(const Piece& keys) const {
    return std::ranges::any_of(
        ring_.pieces, [&](const Piece& queries) { return ring_.order.sees(queries, keys); });
  }

  /// What this rank's queries add to the gradients of these keys and values.
  Tensor added_here(const KeysAndValues& here, std::span<const Piece> theirs) {
    Pieces of_pieces;
    for (const Piece& keys : theirs) {
      Tensor of_keys;
      Tensor of_values;
      for (std::size_t i = 0; i < dq_.size(); ++i) {
        if (!ring_.order.sees(ring_.pieces[i], keys)) {
          continue;
        }
        const ops::AttentionBlockGradients of = ops::attention_block_backward(
            dy_[i], saved_.q[i].get(name), here.keys(keys), here.values(keys), delta_[i],
            saved_.lse[i].get(name),
            ring_.block(ring_.pieces[i], keys, saved_.documents[i].get(name)));
        add_into(dq_[i], of.q);
        add_into(of_keys, of.k);
        add_into(of_values, of.v);
      }
      if (of_keys) {
        of_pieces.push_back(ops::cat({{of_keys, of_values}}, 3));
      } else {
        Dims shape = here.both.shape();
        shape[1] = keys.length;
        of_pieces.push_back(zeros(shape, sums_of(here.both.dtype()), here.both.device()));
      }
    }
    return ring_.joined(of_pieces, 1);
  }

  const Saved& saved_;
  const Ring& ring_;
  Pieces dy_;
  Pieces delta_;
  Pieces dq_;
  Tensor of_both_;
  std::optional<ops::PendingTensor> arriving_;
};

void ring_backward(const Saved& saved, const Tensor& dy, std::span<Tensor> out) {
  if (grad_enabled()) {
    fail({.thing = name,
          .wrong = "its gradient cannot be differentiated again (requested by create_graph)",
          .advice = "use the form \"all_to_all\""});
  }
  const RingGradients found(saved, dy);
  const DType dtype = dy.dtype();
  const Tensor both = ops::cast(found.keys_and_values(), dtype);
  out[0] = ops::cast(found.queries(), dtype);
  out[1] = ops::contiguous(ops::narrow(both, 3, 0, saved.key_dim));
  out[2] = ops::contiguous(ops::narrow(both, 3, saved.key_dim, both.size(3) - saved.key_dim));
}

std::vector<SavedTensor> saved_pieces(const Pieces& pieces) {
  std::vector<SavedTensor> saved;
  for (const Tensor& piece : pieces) {
    saved.emplace_back(piece);
  }
  return saved;
}

}  // namespace

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& documents,
                      const RingOptions& options, const RingAxis& axis) {
  const Tensors inputs{q, k, v};
  Tensor y;
  std::shared_ptr<Saved> saved;
  {
    const NoGrad no_grad;
    const Ring ring(options, axis, q.size(1));
    const Pieces queries = ring.ordered(detached(q), 1);
    const Pieces of_documents = ring.ordered(documents, 1);
    const KeysAndValues own{
        .both = ring.joined(ring.ordered(ops::cat({{detached(k), detached(v)}}, 3), 1), 1),
        .key_dim = k.size(3)};
    const std::vector<ops::AttentionBlock> results = results_of(ring, queries, of_documents, own);
    Pieces ys;
    Pieces lses;
    for (const ops::AttentionBlock& result : results) {
      ys.push_back(ops::cast(result.y, q.dtype()));
      lses.push_back(result.lse);
    }
    y = ring.restored(ys, 1);
    saved = std::make_shared<Saved>(Saved{.ring = ring,
                                          .key_dim = k.size(3),
                                          .q = saved_pieces(queries),
                                          .documents = saved_pieces(of_documents),
                                          .lse = saved_pieces(lses),
                                          .both = SavedTensor(own.both),
                                          .y = SavedTensor(detached(y))});
  }
  record_function(name, inputs, std::vector<Tensor>{y},
                  [saved = std::move(saved)](std::span<const Tensor> grads, std::span<Tensor> out) {
                    ring_backward(*saved, grads[0], out);
                  });
  return y;
}

}  // namespace context
