export module tessera.nn:attention;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :parameter;
import :tree;
import :layers;
import :attention_cache;

export namespace tessera::nn {

/// Options of an attention layer.
struct AttentionOptions {
  std::int64_t dim = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // 0: as many as heads; query head h uses kv head h * kv_heads / heads
  std::int64_t head_dim = 0;  // 0: dim / heads
  bool bias = false;          // of the projections of queries, keys and values
  bool output_bias = false;   // of the last projection
  /// Queries and keys of each head are normalized (RMSNorm, with weights that all heads share)
  /// before they are rotated: children q_norm and k_norm.
  bool query_key_norm = false;
  double norm_eps = 1e-6;    // of these norms
  bool norm_offset = false;  // see RMSNorm
  bool causal = true;        // a query sees no later key
  double rope_theta = 0;     // the base of the rotary embedding; 0: none
  ops::RotaryScaling rope_scaling = {};
  // Of a causal one without a mask and dropout: see ops::CausalOptions.
  double scale = 0;
  std::int64_t window = 0;
  double softcap = 0;
  double dropout = 0;                // of the probabilities, while training
  double standard_deviation = 0.02;  // of the initial weights
  DType dtype = DType::f32;

  /// Errors (input): extents that are not positive, heads that kv_heads does not divide, an odd
  /// head_dim with a rotary embedding, a window or a softcap with dropout or without causality.
  void check() const;
  std::int64_t key_heads() const { return kv_heads > 0 ? kv_heads : heads; }
  std::int64_t head_extent() const { return head_dim > 0 ? head_dim : dim / heads; }
};

/// Several documents in the rows of a batch of tokens [B, T]. Undefined: a row is one document.
struct RowDocuments {
  Tensor first;      // i64 [B, T]: the number of the first token of a token's document in its row
  Tensor positions;  // i64 [B, T]: of a token in its document
};

/// softmax(q k^T) v, which Attention computes of its heads when they are rotated: q [B, Tq, H, D],
/// k [B, Tk, KV, D], v [B, Tk, KV, Dv] -> [B, Tq, H, Dv]. Optional inputs: mask and documents, as
/// those of Attention. A module of its own, so that a style can replace it by one that computes the
/// same of a sequence that is split over ranks.
class InnerAttention : public Module {
 public:
  explicit InnerAttention(const AttentionOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  const AttentionOptions& options() const { return options_; }
  /// The rate at which probabilities are dropped now: 0 in an evaluation.
  double dropout() const { return is_training() ? options_.dropout : 0; }

 private:
  AttentionOptions options_;
};

/// Self-attention: hidden_states [B, T, dim] -> [B, T, dim]. Children q_proj, k_proj, v_proj,
/// o_proj and inner_attention. Optional inputs: mask, bool (true: the query sees the key) or added
/// to the scores, broadcast to [B, heads, T, keys], of an attention without window and softcap;
/// positions, i64 [T] or [B, T], for the rotary embedding (default: counted from the tokens in the
/// cache); documents, i64 [B, T] (RowDocuments::first): no query sees another document than its
/// own; with the documents' positions, a causal one without mask and dropout has, bit by bit, the
/// result of each document alone.
class Attention : public Module {
 public:
  explicit Attention(const AttentionOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  const AttentionOptions& options() const { return options_; }
  /// With a cache, forward takes the tokens that follow those in it and appends them; null for
  /// none. The cache must live as long as it is set. With a split one, inner_attention is not
  /// called: the cache computes what it would. Errors of forward then: a mask, documents, dropout.
  void set_cache(AttentionCache* cache) { cache_ = cache; }

 private:
  void check_heads(std::span<const int> axes) const;

  AttentionOptions options_;
  AttentionCache* cache_ = nullptr;
  Child q_, k_, v_, o_, q_norm_, k_norm_, inner_;
};

/// Adds an embedding of each position: hidden_states [B, T, dim] -> the same. Optional input:
/// positions, i64 [T] or [B, T] (default: 0 to T - 1). Errors: more positions than `count`.
class PositionEmbedding : public Module {
 public:
  enum class Kind {
    learned,    // a parameter "weight" [count, dim], as GPT and BERT
    sinusoidal  // a buffer "table": sin(p / 10000^(2i / dim)) at 2i, the cosine at 2i + 1
  };
  /// Errors: an odd dim with a sinusoidal table.
  PositionEmbedding(std::int64_t count, std::int64_t dim, Kind which,
                    double standard_deviation = 0.02, DType dtype = DType::f32);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  std::int64_t count_;
};

}  // namespace tessera::nn
