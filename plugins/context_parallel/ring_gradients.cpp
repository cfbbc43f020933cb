#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

#include "ring_parts.hpp"

namespace context {

using namespace tessera;

namespace {

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
  RingGradients(const SavedForward& saved, const Tensor& dy)
      : saved_(saved),
        ring_(saved.ring),
        balanced_(saved.ring.order.is_balanced()),
        dy_(saved.ring, dy, 1),
        delta_(saved.ring, products_of(saved, dy), 2),
        dq_(saved.ring.pieces.size()),
        own_{.both = saved.both.get(ring_name), .key_dim = saved.key_dim},
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
    const Tensor first = ops::cast(dq_[0], saved_.y.get(ring_name).dtype());
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
  static Tensor products_of(const SavedForward& saved, const Tensor& dy) {
    const Tensor& y = saved.y.get(ring_name);
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
    queries_returning_ = ring_.mirrored(ops::cast(dq_[1], saved_.y.get(ring_name).dtype()));
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
        ring_.of_queries(dy_.at(i), heads, 2),
        ring_.of_queries(saved_.q[i].get(ring_name), heads, 2), here.keys(keys, heads),
        here.values(keys, heads), ring_.of_queries(delta_.at(i), heads, 1),
        ring_.of_queries(saved_.lse[i].get(ring_name), heads, 1),
        ring_.block(ring_.pieces[i], keys, saved_.documents[i].get(ring_name)));
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

  const SavedForward& saved_;
  const Ring& ring_;
  bool balanced_;
  ExchangedTokens dy_;
  ExchangedTokens delta_;
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

}  // namespace

void ring_backward(const SavedForward& saved, const Tensor& dy, std::span<Tensor> out) {
  if (grad_enabled()) {
    fail({.thing = ring_name,
          .wrong = "its gradient cannot be differentiated again (requested by create_graph)",
          .advice = "use the form \"all_to_all\""});
  }
  RingGradients found(saved, dy);
  const Tensor both = ops::cast(found.keys_and_values(), dy.dtype());
  out[0] = found.queries();
  out[1] = ops::contiguous(ops::narrow(both, 3, 0, saved.key_dim));
  out[2] = ops::contiguous(ops::narrow(both, 3, saved.key_dim, both.size(3) - saved.key_dim));
}

}  // namespace context
