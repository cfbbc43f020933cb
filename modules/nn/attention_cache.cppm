export module tessera.nn:attention_cache;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :recurrent;

export namespace tessera::nn {

/// The result of a block of keys as if each head had one more key, whose score is sinks [H] and
/// whose value is 0: y [B, T, H, Dv] in the type `dtype`.
Tensor with_sinks(const ops::AttentionBlock& block, const Tensor& sinks, DType dtype);

/// Some positions of a sequence that follow one another, and are on one rank.
struct PositionRun {
  std::int64_t position = 0;  // the first one
  std::int64_t place = 0;     // of the first one, among all positions that the rank keeps
  std::int64_t count = 0;
};

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
  /// Each rank of this mesh axis keeps its part of the tokens (PositionParts).
  explicit AttentionCache(int axis) : axis_(axis) {}

  bool is_split() const { return axis_ >= 0; }
  /// How many tokens it has, on all ranks together.
  std::int64_t length() const { return length_; }
  /// Bytes of this rank's memory for them, with the room for further ones.
  std::int64_t bytes() const;
  /// Appends keys [B, T, KV, D] and values [B, T, KV, Dv] and makes them those of all tokens.
  /// Errors: another batch, or other heads, than the tokens before; tokens that are split over
  /// ranks; a split cache.
  void append(Tensor& keys, Tensor& values);
  /// Of a split cache: appends keys and values, and returns the attention [B, T, H, Dv] of the
  /// tokens' queries q [B, T, H, D] to all keys so far. Along the cache's axis all three are
  /// Shard(1), in equal parts, or Replicate; the result is what q is. `options`: positions are the
  /// cache's, and there are no documents. `chunk`: see AttentionOptions; `sinks`: see with_sinks(),
  /// undefined for none. Errors: other layouts, another batch, other heads.
  Tensor attend(const Tensor& q, const Tensor& keys, const Tensor& values,
                const ops::AttentionBlockOptions& options, std::int64_t chunk = 0,
                const Tensor& sinks = {});
  /// Forgets all tokens.
  void clear() { *this = AttentionCache(axis_); }

 private:
  int axis_ = -1;
  Tensor keys_;    // [B, KV, room, D]; undefined before the first token
  Tensor values_;  // the same with Dv
  std::int64_t length_ = 0;
};

/// What all layers keep of the tokens so far, for generation.
struct KeyValueCache {
  /// The mesh axis over which each attention layer's cache is split; -1: none.
  int axis = -1;
  std::vector<AttentionCache> layers = {};  // of those that attend
  std::vector<RecurrentState> states = {};  // of those that pass on a state
  /// How many tokens it has.
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
