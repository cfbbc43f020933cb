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

/// Some heads of keys and values, with the heads of queries that use them.
struct Heads {
  std::int64_t first;
  std::int64_t count;
};

/// What all ranks of a ring agree on, and this rank's part.
struct Ring {
  Ring(const RingOptions& wanted, const RingAxis& along, const Tensor& q, const Tensor& k)
      : options(wanted),
        axis(along),
        order(along.group.size(), q.size(1), wanted.sight, wanted.balance),
        rank(along.group.rank()),
        pieces(order.pieces_of(rank)),
        kv_heads(k.size(2)),
        queries_per_key(q.size(2) / k.size(2)) {}

  Tensor joined(const Pieces& x, int dim) const {
    return x.size() == 1 ? x[0] : ops::cat(std::span<const Tensor>(x), dim);
  }
  /// The x of the rank across the ring, and `by` places further.
  ops::PendingTensor mirrored(const Tensor& x, std::int64_t by = 0) const {
    report(axis, "all_to_all", x);
    return ops::mirror_async(x, by, axis.group);
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
  bool sees(std::size_t queries, const Piece& keys) const {
    return order.sees(pieces[queries], keys);
  }

  Heads all_heads() const { return {.first = 0, .count = kv_heads}; }
  /// All heads in two parts; in one where keys have one head.
  std::vector<Heads> halves_of_heads() const {
    if (kv_heads == 1) {
      return {all_heads()};
    }
    const std::int64_t half = kv_heads / 2;
    return {{.first = 0, .count = half}, {.first = half, .count = kv_heads - half}};
  }
  /// The heads of x that use these ones of keys; `dim` is that of heads.
  Tensor of_queries(const Tensor& x, const Heads& heads, int dim) const {
    return heads.count == kv_heads
               ? x
               : ops::narrow(x, dim, heads.first * queries_per_key, heads.count * queries_per_key);
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
  std::int64_t kv_heads;
  std::int64_t queries_per_key;
};

/// A rank's tokens as the order has them. The second piece is on its way from the rank across the
/// ring until it is asked for. Of an undefined tensor all are undefined.
class Arriving {
 public:
  /// `dim` is that of tokens.
  Arriving(const Ring& ring, const Tensor& x, int dim) : first_(x) {
    if (x && ring.order.is_balanced()) {
      const std::int64_t kept = ring.order.kept();
      first_ = ops::narrow(x, dim, 0, kept);
      second_ = ring.mirrored(ops::narrow(x, dim, kept, x.size(dim) - kept));
    }
  }
  const Tensor& at(std::size_t piece) { return piece == 0 || !second_ ? first_ : second_->wait(); }

 private:
  Tensor first_;
  std::optional<ops::PendingTensor> second_;
};

/// Keys and values of some tokens in one tensor [B, T, KV, D + Dv], which moves.
struct KeysAndValues {
  Tensor both;
  std::int64_t key_dim;

  Tensor keys(const Piece& piece, const Heads& heads) const {
    return ops::narrow(of(piece, heads), 3, 0, key_dim);
  }
  Tensor values(const Piece& piece, const Heads& heads) const {
    return ops::narrow(of(piece, heads), 3, key_dim, both.size(3) - key_dim);
  }

 private:
  Tensor of(const Piece& piece, const Heads& heads) const {
    const Tensor tokens = ops::narrow(both, 1, piece.first, piece.length);
    return heads.count == both.size(2) ? tokens : ops::narrow(tokens, 2, heads.first, heads.count);
  }
};

/// Calls body(step, keys and values that are here, whose pieces) once for each step, while those of
/// the next one are on their way.
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
  std::vector<SavedTensor> q = {};  // ordered pieces
  std::vector<SavedTensor> documents = {};
  std::vector<SavedTensor> lse = {};
  SavedTensor both;  // keys and values, ordered
  SavedTensor y;     // the result
};

/// The attention of a rank's queries. Where halves are exchanged, its own first half is computed
/// while the second one comes; and in the last step of the ring the results that go back are
/// computed first, of half of the heads and then of the others, so that they travel behind what
/// is computed after them. What is merged into a result, and in which order, is the same.
class RingResults {
 public:
  RingResults(const Ring& ring, const Tensor& q, const Tensor& k, const Tensor& v,
              const Tensor& documents)
      : ring_(ring), key_dim_(k.size(3)), dtype_(q.dtype()), results_(ring.pieces.size()) {
    const bool balanced = ring.order.is_balanced();
    {
      // Keys first: other ranks wait for them.
      Arriving keys(ring, ops::cat({{k, v}}, 3), 1);
      q_.emplace(ring, q, 1);
      documents_.emplace(ring, documents, 1);
      if (balanced) {
        merge(results_[0], block(0, {keys.at(0), key_dim_}, ring.pieces[0], ring.all_heads()));
      }
      own_ = balanced ? ops::cat({{keys.at(0), keys.at(1)}}, 1) : keys.at(0);
    }
    around(ring, {own_, key_dim_},
           [&](std::int64_t step, const KeysAndValues& here, const std::vector<Piece>& theirs) {
             std::size_t pieces = results_.size();
             if (balanced && step + 1 == ring.order.steps()) {
               send_second(here, theirs);
               pieces = 1;
             }
             for (std::size_t i = 0; i < pieces; ++i) {
               for (const Piece& piece : theirs) {
                 const bool is_there = balanced && step == 0 && i == 0 && piece.first == 0;
                 if (ring_.sees(i, piece) && !is_there) {
                   merge(results_[i], block(i, here, piece, ring_.all_heads()));
                 }
               }
             }
           });
  }

  /// [B, T, H, Dv], with the rank's own tokens.
  Tensor results() {
    const Tensor first = ops::cast(results_[0].y, dtype_);
    if (returning_.empty()) {
      return first;
    }
    Pieces of_heads;
    for (ops::PendingTensor& part : returning_) {
      of_heads.push_back(part.wait());
    }
    return ops::cat({{first, ring_.joined(of_heads, 2)}}, 1);
  }

  /// `y`: results().
  std::shared_ptr<Saved> saved(const Tensor& y) {
    auto saved = std::make_shared<Saved>(
        Saved{.ring = ring_, .key_dim = key_dim_, .both = SavedTensor(own_), .y = SavedTensor(y)});
    for (std::size_t i = 0; i < results_.size(); ++i) {
      saved->q.emplace_back(q_->at(i));
      saved->documents.emplace_back(documents_->at(i));
      saved->lse.emplace_back(results_[i].lse);
    }
    return saved;
  }

 private:
  ops::AttentionBlock block(std::size_t i, const KeysAndValues& here, const Piece& keys,
                            const Heads& heads) {
    return ops::attention_block(ring_.of_queries(q_->at(i), heads, 2), here.keys(keys, heads),
                                here.values(keys, heads),
                                ring_.block(ring_.pieces[i], keys, documents_->at(i)));
  }

  static void merge(ops::AttentionBlock& result, const ops::AttentionBlock& block) {
    if (result.y) {
      result = ops::attention_merge(result, block);
    } else {
      result = {.y = ops::cast(block.y, sums_of(block.y.dtype())), .lse = block.lse};
    }
  }

  /// The last step of the second piece, whose results go back.
  void send_second(const KeysAndValues& here, const std::vector<Piece>& theirs) {
    ops::AttentionBlock& before = results_[1];
    Pieces lses;
    for (const Heads& heads : ring_.halves_of_heads()) {
      ops::AttentionBlock part;
      if (before.y) {
        part = {.y = ring_.of_queries(before.y, heads, 2),
                .lse = ring_.of_queries(before.lse, heads, 1)};
      }
      for (const Piece& piece : theirs) {
        if (ring_.sees(1, piece)) {
          merge(part, block(1, here, piece, heads));
        }
      }
      returning_.push_back(ring_.mirrored(ops::cast(part.y, dtype_)));
      lses.push_back(part.lse);
    }
    before = {.y = {}, .lse = ring_.joined(lses, 1)};
  }

  const Ring& ring_;
  std::int64_t key_dim_;
  DType dtype_;
  std::optional<Arriving> q_;
  std::optional<Arriving> documents_;
  Tensor own_;                                 // keys and values
  std::vector<ops::AttentionBlock> results_;   // of the pieces, in the type of sums
  std::vector<ops::PendingTensor> returning_;  // those of the second one, by heads
};

void add_into(Tensor& sum, const Tensor& term) {
  const Tensor wide = ops::cast(term, sums_of(term.dtype()));
  if (sum) {
    ops::add_(sum, wide);
  } else {
    sum = wide;
  }
}

/// Gradients of some keys and values while they are summed.
struct KeySums {
  Tensor keys;
  Tensor values;

  void add(const ops::AttentionBlockGradients& of) {
    add_into(keys, of.k);
    add_into(values, of.v);
  }
  Tensor both() const { return ops::cat({{keys, values}}, 3); }
};

/// Gradients of the queries of a rank's pieces, and those of keys and values. These travel with the
/// keys of other ranks, and home when all have been there; meanwhile each rank computes what its
/// queries add to the next ones: first a part of its own keys, behind which those of others come,
/// and last the rest of its own, behind which the gradients come home. All in the type of sums.
///
/// Where halves are exchanged, what the own first half adds to own keys is computed, as far as it
/// is not needed for the end, while the results' gradients come; what a rank adds to its own second
/// keys goes to their rank during the ring, and what others add to them goes there at its end
/// instead of home; and the second queries' gradients leave before the last block.
class RingGradients {
 public:
  RingGradients(const Saved& saved, const Tensor& dy)
      : saved_(saved),
        ring_(saved.ring),
        balanced_(saved.ring.order.is_balanced()),
        dy_(saved.ring, dy, 1),
        delta_(saved.ring, products_of(saved, dy), 2),
        dq_(saved.ring.pieces.size()),
        own_{.both = saved.both.get(name), .key_dim = saved.key_dim},
        halves_(saved.ring.own_halves()) {
    if (balanced_) {
      compute_before_arrival();
    }
    around(ring_, own_,
           [&](std::int64_t step, const KeysAndValues& here, const std::vector<Piece>& theirs) {
             if (step > 0) {
               take_step(here, theirs, step);
             } else {
               compute_second_half();
             }
           });
    compute_first_half();
  }

  /// In the type of the results.
  Tensor queries() {
    const Tensor first = ops::cast(dq_[0], saved_.y.get(name).dtype());
    return balanced_ ? ops::cat({{first, queries_returning_->wait()}}, 1) : first;
  }
  /// Of keys and values, [B, T, KV, D + Dv].
  Tensor keys_and_values() {
    Pieces own{of_first_};
    if (!balanced_ && of_second_) {
      own.push_back(of_second_);
    }
    Tensor home = ring_.joined(own, 1);
    if (arriving_) {
      home = ops::add(arriving_->wait(), home);
    }
    if (!balanced_) {
      return home;
    }
    Tensor second = second_arriving_->wait();
    if (second_of_others_) {
      second = ops::add(second_of_others_->wait(), second);
    }
    return ops::cat({{home, second}}, 1);
  }

 private:
  static Tensor products_of(const Saved& saved, const Tensor& dy) {
    const Tensor& y = saved.y.get(name);
    const DType sums = sums_of(y.dtype());
    const Tensor products = ops::sum(ops::mul(ops::cast(dy, sums), ops::cast(y, sums)), {3});
    return ops::contiguous(ops::transpose(products, 1, 2));
  }

  bool crosses() const { return ring_.sees(0, ring_.pieces[1]); }

  /// Of the first queries, without what comes from another rank: the whole of a block that is
  /// needed next, or half of the heads of the one with which compute_first_half() ends.
  void compute_before_arrival() {
    early_ = crosses() ? gradients(0, own_, halves_[1], ring_.all_heads())
                       : gradients(0, own_, halves_[0], ring_.halves_of_heads().front());
  }

  /// Own keys that few of the own queries see.
  void compute_second_half() {
    if (!balanced_) {
      if (halves_.size() > 1) {
        of_second_ = added_here(own_, {&halves_[1], 1});
      }
      return;
    }
    KeySums sums;
    if (crosses()) {
      add_into(dq_[0], early_.q);
      sums.add(early_);
      early_ = {};
    }
    const ops::AttentionBlockGradients of = gradients(1, own_, halves_[1], ring_.all_heads());
    add_into(dq_[1], of.q);
    sums.add(of);
    second_arriving_ = ring_.mirrored(sums.both());
  }

  /// The rest of the own keys.
  void compute_first_half() {
    if (!balanced_) {
      of_first_ = added_here(own_, {halves_.data(), 1});
      return;
    }
    const Piece& keys = halves_[0];
    std::optional<ops::AttentionBlockGradients> of_second;
    if (ring_.sees(1, keys)) {
      of_second = gradients(1, own_, keys, ring_.all_heads());
      add_into(dq_[1], of_second->q);
    }
    queries_returning_ = ring_.mirrored(ops::cast(dq_[1], saved_.y.get(name).dtype()));
    dq_[1] = Tensor();
    const ops::AttentionBlockGradients of_first = rest_of_first(keys);
    add_into(dq_[0], of_first.q);
    KeySums sums;
    sums.add(of_first);
    if (of_second) {
      sums.add(*of_second);
    }
    of_first_ = sums.both();
  }

  /// Of the first queries and their own keys, with what was computed early.
  ops::AttentionBlockGradients rest_of_first(const Piece& keys) {
    const std::vector<Heads> halves = ring_.halves_of_heads();
    if (!early_.q) {
      return gradients(0, own_, keys, ring_.all_heads());
    }
    if (halves.size() == 1) {
      return early_;
    }
    const ops::AttentionBlockGradients rest = gradients(0, own_, keys, halves.back());
    return {.q = ops::cat({{early_.q, rest.q}}, 2),
            .k = ops::cat({{early_.k, rest.k}}, 2),
            .v = ops::cat({{early_.v, rest.v}}, 2)};
  }

  /// Adds to the gradients of keys that are here, and sends them on, or home.
  void take_step(const KeysAndValues& here, const std::vector<Piece>& theirs, std::int64_t step) {
    const bool any = std::ranges::any_of(theirs, [&](const Piece& keys) { return is_seen(keys); });
    // Keys that nobody here sees pass by.
    Tensor added = any || !arriving_ ? added_here(here, theirs) : Tensor();
    if (arriving_) {
      const Tensor& before = arriving_->wait();
      added = added ? ops::add(before, added) : before;
    }
    if (step + 1 < ring_.order.steps()) {
      arriving_ = ring_.sent(added, 1);
    } else if (balanced_) {
      const std::int64_t kept = ring_.order.kept();
      arriving_ = ring_.sent(ops::narrow(added, 1, 0, kept), -step);
      second_of_others_ = ring_.mirrored(ops::narrow(added, 1, kept, added.size(1) - kept), step);
    } else {
      arriving_ = ring_.sent(added, -step);
    }
  }

  bool is_seen(const Piece& keys) const {
    return ring_.sees(0, keys) || (ring_.pieces.size() > 1 && ring_.sees(1, keys));
  }

  ops::AttentionBlockGradients gradients(std::size_t i, const KeysAndValues& here,
                                         const Piece& keys, const Heads& heads) {
    return ops::attention_block_backward(
        ring_.of_queries(dy_.at(i), heads, 2), ring_.of_queries(saved_.q[i].get(name), heads, 2),
        here.keys(keys, heads), here.values(keys, heads), ring_.of_queries(delta_.at(i), heads, 1),
        ring_.of_queries(saved_.lse[i].get(name), heads, 1),
        ring_.block(ring_.pieces[i], keys, saved_.documents[i].get(name)));
  }

  /// What this rank's queries add to the gradients of these keys and values.
  Tensor added_here(const KeysAndValues& here, std::span<const Piece> theirs) {
    Pieces of_pieces;
    for (const Piece& keys : theirs) {
      KeySums sums;
      for (std::size_t i = 0; i < dq_.size(); ++i) {
        if (ring_.sees(i, keys)) {
          const ops::AttentionBlockGradients of = gradients(i, here, keys, ring_.all_heads());
          add_into(dq_[i], of.q);
          sums.add(of);
        }
      }
      if (sums.keys) {
        of_pieces.push_back(sums.both());
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
  bool balanced_;
  Arriving dy_;
  Arriving delta_;
  Pieces dq_;
  KeysAndValues own_;
  std::vector<Piece> halves_;           // of own keys
  ops::AttentionBlockGradients early_;  // see compute_before_arrival()
  Tensor of_first_, of_second_;         // what the rank adds to its own keys
  std::optional<ops::PendingTensor> arriving_;
  // Of second pieces, where halves are exchanged: of this rank's own second half.
  std::optional<ops::PendingTensor> second_arriving_;   // what the rank across the ring adds
  std::optional<ops::PendingTensor> second_of_others_;  // and what all others do
  std::optional<ops::PendingTensor> queries_returning_;
};

void ring_backward(const Saved& saved, const Tensor& dy, std::span<Tensor> out) {
  if (grad_enabled()) {
    fail({.thing = name,
          .wrong = "its gradient cannot be differentiated again (requested by create_graph)",
          .advice = "use the form \"all_to_all\""});
  }
  RingGradients found(saved, dy);
  const Tensor both = ops::cast(found.keys_and_values(), dy.dtype());
  out[0] = found.queries();
  out[1] = ops::contiguous(ops::narrow(both, 3, 0, saved.key_dim));
  out[2] = ops::contiguous(ops::narrow(both, 3, saved.key_dim, both.size(3) - saved.key_dim));
}

}  // namespace

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& documents,
                      const RingOptions& options, const RingAxis& axis) {
  const Tensors inputs{q, k, v};
  Tensor y;
  std::shared_ptr<Saved> saved;
  {
    const NoGrad no_grad;
    const Ring ring(options, axis, q, k);
    RingResults found(ring, detached(q), detached(k), detached(v), documents);
    y = found.results();
    saved = found.saved(detached(y));
  }
  record_function(name, inputs, std::vector<Tensor>{y},
                  [saved = std::move(saved)](std::span<const Tensor> grads, std::span<Tensor> out) {
                    ring_backward(*saved, grads[0], out);
                  });
  return y;
}

}  // namespace context
