#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

#include "ring.hpp"
#include "ring_parts.hpp"

namespace context {
namespace {

using namespace tessera;

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
      ExchangedTokens keys(ring, ops::cat({{k, v}}, 3), 1);
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
    Tensor first = ops::cast(results_[0].y, dtype_);
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
  std::shared_ptr<SavedForward> saved(const Tensor& y) {
    auto saved = std::make_shared<SavedForward>(SavedForward{
        .ring = ring_, .key_dim = key_dim_, .both = SavedTensor(own_), .y = SavedTensor(y)});
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
  std::optional<ExchangedTokens> q_;
  std::optional<ExchangedTokens> documents_;
  Tensor own_;                                 // keys and values
  std::vector<ops::AttentionBlock> results_;   // of the pieces, in the type of sums
  std::vector<ops::PendingTensor> returning_;  // those of the second one, by heads
};

}  // namespace

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& documents,
                      const RingOptions& options, const RingAxis& axis) {
  const Tensors inputs{q, k, v};
  Tensor y;
  std::shared_ptr<SavedForward> saved;
  {
    const NoGrad no_grad;
    const Ring ring(options, axis, q, k);
    RingResults found(ring, detached(q), detached(k), detached(v), documents);
    y = found.results();
    saved = found.saved(detached(y));
  }
  record_function(ring_name, inputs, std::vector<Tensor>{y},
                  [saved = std::move(saved)](std::span<const Tensor> grads, std::span<Tensor> out) {
                    ring_backward(*saved, grads[0], out);
                  });
  return y;
}

}  // namespace context
