#pragma once
// What forward and backward of a ring's attention share: a rank's part of it, and what moves.
// The importing source must import tessera.tensor, tessera.autograd and tessera.ops.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "ring.hpp"
#include "ring_order.hpp"

namespace context {

inline constexpr const char* ring_name = "ring_attention";

/// The type of sums of elements of `dtype`.
inline tessera::DType sums_of(tessera::DType dtype) {
  return dtype == tessera::DType::f64 ? tessera::DType::f64 : tessera::DType::f32;
}

/// One piece for each of the order's, along the tokens' dim.
using Pieces = std::vector<tessera::Tensor>;

/// Some heads of keys and values, with the heads of queries that use them.
struct Heads {
  std::int64_t first;
  std::int64_t count;
};

/// What all ranks of a ring agree on, and this rank's part.
struct Ring {
  Ring(const RingOptions& wanted, const RingAxis& along, const tessera::Tensor& q,
       const tessera::Tensor& k);

  tessera::Tensor joined(const Pieces& x, int dim) const;
  /// The x of the rank across the ring, and `by` places further.
  tessera::ops::PendingTensor mirrored(const tessera::Tensor& x, std::int64_t by = 0) const;
  tessera::ops::PendingTensor sent(const tessera::Tensor& x, std::int64_t by) const;
  /// A rank's own keys in two parts, of which the later one is seen by fewer of its queries; one
  /// part where there is one key.
  std::vector<Piece> own_halves() const;
  bool sees(std::size_t queries, const Piece& keys) const {
    return order.sees(pieces[queries], keys);
  }

  Heads all_heads() const { return {.first = 0, .count = kv_heads}; }
  /// All heads in two parts; in one where keys have one head.
  std::vector<Heads> halves_of_heads() const;
  /// The heads of x that use these ones of keys; `dim` is that of heads.
  tessera::Tensor of_queries(const tessera::Tensor& x, const Heads& heads, int dim) const;

  tessera::ops::AttentionBlockOptions block(const Piece& queries, const Piece& keys,
                                            const tessera::Tensor& documents) const;

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
class ExchangedTokens {
 public:
  /// `dim` is that of tokens.
  ExchangedTokens(const Ring& ring, const tessera::Tensor& x, int dim);
  const tessera::Tensor& at(std::size_t piece) {
    return piece == 0 || !second_ ? first_ : second_->wait();
  }

 private:
  tessera::Tensor first_;
  std::optional<tessera::ops::PendingTensor> second_;
};

/// Keys and values of some tokens in one tensor [B, T, KV, D + Dv], which moves.
struct KeysAndValues {
  tessera::Tensor both;
  std::int64_t key_dim;

  tessera::Tensor keys(const Piece& piece, const Heads& heads) const;
  tessera::Tensor values(const Piece& piece, const Heads& heads) const;
};

/// Calls body(step, keys and values that are here, whose pieces) once for each step, while those of
/// the next one are on their way.
void around(const Ring& ring, KeysAndValues here,
            const std::function<void(std::int64_t step, const KeysAndValues& here,
                                     const std::vector<Piece>& theirs)>& body);

/// What forward leaves for backward.
struct SavedForward {
  Ring ring;
  std::int64_t key_dim;
  std::vector<tessera::SavedTensor> q = {};  // ordered pieces
  std::vector<tessera::SavedTensor> documents = {};
  std::vector<tessera::SavedTensor> lse = {};
  tessera::SavedTensor both;  // keys and values, ordered
  tessera::SavedTensor y;     // the result
};

/// The gradients of q, k and v. Errors: a gradient that has one itself.
void ring_backward(const SavedForward& saved, const tessera::Tensor& dy,
                   std::span<tessera::Tensor> out);

}  // namespace context
