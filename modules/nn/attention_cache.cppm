export module tessera.nn:attention_cache;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :ragged_batch;
import :rotary;
import :recurrent;

export namespace tessera::nn {

/// The result of a block of keys as if each head had one more key, whose score is sinks [H] and
/// whose value is 0: y [B, T, H, Dv] in the type `dtype`.
Tensor with_sinks(const ops::AttentionBlock& block, const Tensor& sinks, DType dtype);

/// Which rank keeps which positions of a sequence: blocks of positions are dealt to the ranks in
/// turn, so that all parts grow evenly.
struct PositionParts {
  static constexpr std::int64_t block = 64;
  std::int64_t ranks = 1;

  std::int64_t owner(std::int64_t position) const { return position / block % ranks; }
  /// How many of the first `length` positions a rank keeps.
  std::int64_t kept(std::int64_t rank, std::int64_t length) const;
  /// A rank's positions from `begin` up to `end`, which is not one of them.
  std::vector<PositionRun> runs(std::int64_t rank, std::int64_t begin, std::int64_t end) const;
};

/// The keys and values of an attention layer for the tokens so far. Starts empty; its room doubles
/// when it is full, so copying costs constant time per token. Has no gradients.
class AttentionCache {
 public:
  /// Each rank has all tokens of the heads that it computes.
  AttentionCache() = default;
  /// Each rank of this mesh axis keeps its part of the tokens (PositionParts); -1: all of them.
  /// `kept`: the type in which keys and values are kept; none: as they come.
  explicit AttentionCache(int axis, std::optional<DType> kept = std::nullopt)
      : axis_(axis), kept_(kept) {}

  bool is_split() const { return axis_ >= 0; }
  /// Whether attend() computes attention: it is split, or has a batch of several texts.
  bool attends() const { return is_split() || batch_ != nullptr; }
  /// The calls that follow are of this batch; null: of rows of one length. It must live as long as
  /// it is set. Error: a split cache.
  /// `positions`: of its tokens, i64 [T].
  void set_batch(const RaggedBatch* batch, Tensor positions);
  /// The positions of the tokens of a call: the given ones, or those that follow the tokens so far,
  /// in a batch those of each text.
  TokenPositions positions_of(const Tensor& given) const;
  /// How many tokens it has, on all ranks together.
  std::int64_t length() const { return length_; }
  /// Bytes of this rank's memory for them, with the room for further ones.
  std::int64_t bytes() const;
  /// Appends keys [B, T, KV, D] and values [B, T, KV, Dv] and makes them those of all tokens.
  /// Errors: another batch, or other heads, than the tokens before; tokens that are split over
  /// ranks; a cache that attends().
  void append(Tensor& keys, Tensor& values);
  /// Appends keys and values, and returns the attention [B, T, H, Dv] of
  /// the tokens' queries q [B, T, H, D] to all keys so far, in a batch of several texts to those of
  /// their own text. Undefined values: they are the keys. Undefined keys: another layer has
  /// appended those of these tokens. Along a split cache's axis all three are Shard(1), in equal
  /// parts, or Replicate; the result is what q is. `options`: positions are the cache's, and there
  /// are no documents. `chunk`: see AttentionOptions; `sinks`: see with_sinks(), undefined for
  /// none. Errors: other layouts, another batch, other heads.
  Tensor attend(const Tensor& q, const Tensor& keys, const Tensor& values,
                const ops::AttentionBlockOptions& options, std::int64_t chunk = 0,
                const Tensor& sinks = {});
  /// Forgets all tokens.
  void clear() { *this = AttentionCache(axis_, kept_); }

 private:
  int axis_ = -1;
  std::optional<DType> kept_;
  /// attend() of one that is neither split nor has a batch: without chunks and sinks.
  Tensor attend_whole(const Tensor& q, const Tensor& keys, const Tensor& values,
                      const ops::AttentionBlockOptions& options);
  /// attend() of a batch of several texts.
  Tensor attend_rows(const Tensor& q, const Tensor& keys, const Tensor& values,
                     const ops::AttentionBlockOptions& options, std::int64_t chunk,
                     const Tensor& sinks);

  const RaggedBatch* batch_ = nullptr;
  Tensor positions_;  // of the batch's tokens
  Tensor keys_;       // [B, KV, room, D], of a batch [1, KV, places, D]; undefined at first
  Tensor values_;     // the same with Dv
  std::int64_t length_ = 0;
};

/// What all layers keep of the tokens so far, for generation: of rows of one length, or of several
/// texts of which some are computed in each batch.
struct KeyValueCache {
  /// The mesh axis over which each attention layer's cache is split; -1: none.
  int axis = -1;
  /// The type in which keys and values are kept; none: as layers compute them.
  std::optional<DType> kept = {};
  std::vector<AttentionCache> layers = {};  // of those that attend
  std::vector<RecurrentState> states = {};  // of those that pass on a state
  const RaggedBatch* batch = nullptr;       // see set_batch()
  Tensor batch_positions = {};

  /// The calls of the model that follow are of this batch; null: of rows of one length. It must
  /// live as long as it is set. What both leave behind has no room together: clear() in between.
  /// Error: a split cache.
  void set_batch(const RaggedBatch* now);
  /// The positions in their texts of the `count` tokens of a call, i64 [count].
  Tensor positions(std::int64_t count) const;
  /// Of hidden states [B, T, C] those of the tokens that have logits; outside of a batch all.
  Tensor scored(const Tensor& hidden) const;
  /// How many tokens it has. Error: it has a batch, whose texts have a length each.
  std::int64_t length() const;
  /// Bytes of this rank's memory for them.
  std::int64_t bytes() const;
  /// Forgets all tokens.
  void clear();
};

}  // namespace tessera::nn

namespace tessera::nn {

/// Bytes of this rank's memory for a tensor; 0: it is undefined.
std::int64_t bytes_of(const Tensor& kept);

}  // namespace tessera::nn
