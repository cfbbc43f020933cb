export module tessera.ops:attention;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

/// Which keys a query sees. PyTorch's is_causal is upper_left.
enum class Causal {
  none,
  upper_left,  // query i sees keys 0 to i
  lower_right  // query i sees keys 0 to i + Tk - Tq: the last query sees all keys
};

/// Options of causal_attention.
struct CausalOptions {
  double scale = 0;  // of q . k; 0: 1/sqrt(D)
  /// A query sees at most so many keys, of which its own is the last; 0: any number. Source:
  /// Beltagy et al., Longformer (2020), as a sliding window.
  std::int64_t window = 0;
  /// A scaled score s becomes softcap tanh(s / softcap); 0: it stays. Source: Gemma 2 (2024).
  double softcap = 0;
  /// Several documents in one row: for each token [B, T] (i64) the number of the first token of its
  /// document. A query sees no other document, and its result is, bit by bit, what it is where the
  /// document stands alone. Tk = Tq then. Undefined: a row is one document.
  Tensor documents = {};
};
/// Causal grouped-query attention. q [B, Tq, H, D]; k [B, Tk, KV, D]; v [B, Tk, KV, Dv]; query head
/// h uses kv head h * KV / H; query i sees keys <= i + Tk - Tq (Causal::lower_right), so the first
/// keys and values may come from a cache; Tk >= Tq. -> [B, Tq, H, Dv]. Never stores Tq x Tk scores.
/// Sharded by batch (dim 0) or by heads (dim 2, if H and KV are divisible). Errors: documents that
/// do not follow one after the other.
Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const CausalOptions& options = {});

/// A block of the attention of a longer sequence: some of its queries, and some of its keys and
/// values, each in one piece.
struct AttentionBlockOptions {
  double scale = 0;  // these three: see CausalOptions
  std::int64_t window = 0;
  double softcap = 0;
  bool causal = true;  // a query sees no later key; if not, the window must be 0
  /// The positions in the sequence of the first query and of the first key.
  std::int64_t first_query = 0;
  std::int64_t first_key = 0;
  /// Of a causal one, for each query [B, Tq] (i64): the position at which its document begins; it
  /// sees no earlier key. Undefined: a row is one document.
  Tensor documents = {};
};
/// The result of some keys, and for each query the logarithm of the sum of its exponentials, by
/// which results of other keys are merged with it; minus infinity where it sees none of the keys.
struct AttentionBlock {
  Tensor y;    // [B, Tq, H, Dv]
  Tensor lse;  // [B, H, Tq], in the type of sums
};
/// The attention of a block: q [B, Tq, H, D], k [B, Tk, KV, D] and v [B, Tk, KV, Dv], with any Tq
/// and Tk. Has no gradient of its own: attention_block_backward is for who merges blocks. Sharded
/// by batch (dim 0) or by heads (dim 2, if H and KV are divisible). Errors: documents that do not
/// follow one after the other.
AttentionBlock attention_block(const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttentionBlockOptions& options);
/// The result of the keys of both, which have none in common. The second result may be of a
/// narrower type; the merged one has the first one's. Has no gradient.
AttentionBlock attention_merge(const AttentionBlock& a, const AttentionBlock& b);
/// What a block adds to the gradients of its queries, and of its keys and values.
struct AttentionBlockGradients {
  Tensor q;
  Tensor k;
  Tensor v;
};
/// `dy`: the gradient of the whole result; `delta` [B, H, Tq]: its products with the whole result,
/// summed over Dv; `lse` [B, H, Tq]: of all keys. Both are in the type of sums.
AttentionBlockGradients attention_block_backward(const Tensor& dy, const Tensor& q, const Tensor& k,
                                                 const Tensor& v, const Tensor& delta,
                                                 const Tensor& lse,
                                                 const AttentionBlockOptions& options);
/// softmax(scale q k^T + mask) v for q [B, H, Tq, D], k [B, KV, Tk, D] and v [B, KV, Tk, Dv]; query
/// head h uses key/value head h * KV / H. -> [B, H, Tq, Dv]. `mask` broadcasts to [B, H, Tq, Tk]:
/// bool (true: the query sees the key), or of q's type and added to the scores, with a gradient. A
/// query that sees nothing gives 0. dropout_p of the probabilities are dropped: random number
/// ((b H + h) Tq + i) Tk + j of the call decides about a score in every layout; backward
/// regenerates the mask. scale 0: 1/sqrt(D). Never stores all scores, except in the gradient of an
/// added mask. Sharded by batch (dim 0), by heads (dim 1, if H and KV are divisible), or, if not
/// causal, by queries (dim 2 of q, with k and v Replicate).
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& mask = {}, double dropout_p = 0,
                                    Causal causal = Causal::none, double scale = 0,
                                    const RandomSource& source = by_batch_row("dropout"));
/// Changes of a rotary embedding's frequencies theta^(-2i / D), i < D / 2, for sequences that are
/// longer than those of pretraining.
struct RotaryScaling {
  enum class Kind {
    none,
    linear,  // all are divided by `factor`: Chen et al., Position Interpolation (2023)
    llama3,  // the low ones are: Llama 3.1 (2024)
    yarn     // the low ones are: Peng et al., YaRN (2023)
  };
  Kind kind = Kind::none;
  double factor = 1;
  double original_positions = 0;  // llama3 and yarn: the longest sequence of pretraining
  /// With a wavelength of original_positions / low or more a frequency is divided, with one of
  /// original_positions / high or less it stays (llama3); or with `low` or fewer turns within
  /// original_positions it is divided, with `high` or more it stays (yarn). In between it changes
  /// gradually.
  double low = 1;
  double high = 4;
  double amplitude = 1;    // cosines and sines are multiplied by it (yarn: 0.1 ln(factor) + 1)
  bool whole_dims = true;  // yarn: the bounds are rounded outwards to whole dims

  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};
/// Rotary embedding of x [B, T, H, D] in the halves form (first half with second half, as
/// transformers' Llama), for positions offset .. offset + T - 1. Sharded by batch, by heads, or by
/// time (dim 1): each rank uses the positions of its shard.
Tensor rotary(const Tensor& x, double theta, std::int64_t offset = 0,
              const RotaryScaling& scaling = {});
/// Rotary embedding with explicit positions, i64 [T] or [B, T], 0 or more: for packed sequences, or
/// for a time dim that is distributed in another order. If x is sharded by time, so are the
/// positions.
Tensor rotary(const Tensor& x, const Tensor& positions, double theta,
              const RotaryScaling& scaling = {});
/// silu(gate) * up.
Tensor swiglu(const Tensor& gate, const Tensor& up);

}  // namespace tessera::ops
