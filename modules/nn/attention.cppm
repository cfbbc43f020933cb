export module tessera.nn:attention;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :parameter;
import :tree;
import :layers;
import :rotary;
import :attention_cache;

export namespace tessera::nn {

/// Which features of queries, and of keys, are normalized together.
enum class HeadNorm {
  none,
  shared,  // those of a head, with weights that all heads share
  each,    // those of a head, with weights of each head, [H, D]
  whole    // those of all heads
};

/// Options of an attention layer.
struct AttentionOptions {
  std::int64_t dim = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // 0: as many as heads; query head h uses kv head h * kv_heads / heads
  std::int64_t head_dim = 0;  // 0: dim / heads
  bool bias = false;          // of the projections of queries, keys and values
  bool output_bias = false;   // of the last projection
  double clip = 0;            // queries, keys and values are at most so far from 0; 0: they are not
  HeadNorm query_key_norm = HeadNorm::none;  // children q_norm and k_norm
  NormOptions norm = {.eps = 1e-6};          // of them
  bool norm_after_rotation = false;          // HeadNorm::whole is always before
  bool value_norm = false;                   // heads of values are normalized, without weights
  bool keys_as_values = false;  // values are the projected keys, before norm and rotation
  /// The attention layer of the model, from 0, whose keys and values it uses; -1: its own. Then it
  /// has no k_proj, v_proj and k_norm.
  std::int64_t keys_of = -1;
  bool gives_keys = false;  // keys and values are outputs too
  QueryGrowth growth = {};  // after norms and rotation
  bool causal = true;       // a query sees no later key
  RotaryOptions rotary = {};
  /// What attention gives is multiplied by the sigmoid of a further projection, gate_proj, before
  /// the last one.
  bool gate = false;
  // Of a causal one without a mask and dropout: see ops::CausalOptions.
  double scale = 0;
  std::int64_t window = 0;
  double softcap = 0;
  /// And: a query sees only keys of its chunk of so many positions, which begins at a multiple of
  /// them in its row, or in its document. 0: all. Not with a window.
  std::int64_t chunk = 0;
  bool sinks = false;                // and: see with_sinks(); a parameter "sinks" [heads]
  double dropout = 0;                // of the probabilities, while training
  double standard_deviation = 0.02;  // of the initial weights
  DType dtype = DType::f32;

  /// Errors (input): extents that are not positive, heads that kv_heads does not divide, those of
  /// RotaryOptions and QueryGrowth; a window, a softcap, chunks or sinks with dropout or without
  /// causality; a window with chunks; chunks with keys of another layer.
  void check() const;
  /// Whether only ops::causal_attention and what is made of it computes it.
  bool is_special() const { return window != 0 || softcap != 0 || chunk != 0 || sinks; }
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
/// those of Attention, and sinks [H] (with_sinks()). Chunks are documents here. A module of its
/// own, so that a style can replace it by one that computes the same of a sequence that is split
/// over ranks.
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

/// A layer with a cache of keys and values, whatever it makes these from. Its child inner_attention
/// computes what becomes of them.
class AttentionLayer : public Module {
 public:
  /// With a cache, forward takes the tokens that follow those in it and appends them; null for
  /// none. The cache must live as long as it is set. With one that attends(), inner_attention is
  /// not called: the cache computes what it would. Errors of forward then: a mask, documents,
  /// dropout.
  /// Of a layer with keys_of() it is that layer's, which has appended the tokens already.
  void set_cache(AttentionCache* cache) { cache_ = cache; }
  /// See AttentionOptions.
  std::int64_t keys_of() const { return inner_options_.keys_of; }

 protected:
  /// Heads are as `options` describes them.
  explicit AttentionLayer(const AttentionOptions& options);
  /// Adds inner_attention, which follows the projections: parameters are initialised in the order
  /// of the children.
  void add_inner();
  /// The positions of a call's tokens, so many: the given ones, or those that follow the cache's.
  TokenPositions positions_of(const Tensor& given, std::int64_t tokens) const;
  AttentionCache* cache() const { return cache_; }
  /// Adds the buffer "angles" where wavelengths have factors.
  void add_angles(const RotaryOptions& rotary, std::int64_t head_dim);
  /// Heads (B, T, H, D), rotated.
  Tensor rotated(const Tensor& heads, const RotaryOptions& rotary,
                 const TokenPositions& positions) const;
  /// Errors (input): so many further tokens make the row of the cache a long one, so that all of
  /// its keys and values would be others.
  void check_row(const RotaryOptions& rotary, std::int64_t tokens) const;
  /// How many tokens are in the cache.
  std::int64_t tokens_before() const { return cache_ == nullptr ? 0 : cache_->length(); }
  /// q [B, T, H, D], k [B, T, KV, D], v [B, T, KV, Dv], rotated -> [B, T, H Dv]. Mask and
  /// documents as those of Attention; `positions`: of documents; `sinks`: undefined for none. With
  /// a cache that does not attend, k and v become those of all tokens.
  Tensor attended(const Tensor& q, Tensor& k, Tensor& v, const Tensor& mask,
                  const Tensor& documents, const Tensor& positions = {}, const Tensor& sinks = {});

 private:
  /// What inner_attention gives.
  Tensor inner(const Tensors& inputs);
  /// The same chunk by chunk, where a cache has the keys of earlier tokens.
  Tensor inner_of_chunks(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sinks);
  /// For each token [B, T] the number of the first one of its chunk in its row.
  Tensor begins_of_chunks(const Tensor& q, const Tensor& documents, const Tensor& positions) const;

  AttentionOptions inner_options_;
  AttentionCache* cache_ = nullptr;
  Child inner_;
};

/// Self-attention: hidden_states [B, T, dim] -> [B, T, dim]. Children q_proj, k_proj, v_proj,
/// o_proj and inner_attention. Optional inputs: mask, bool (true: the query sees the key) or added
/// to the scores, broadcast to [B, heads, T, keys], of an attention without window and softcap;
/// positions, i64 [T] or [B, T], for the rotary embedding (default: counted from the tokens in the
/// cache; with chunks, only those of documents); documents, i64 [B, T] (RowDocuments::first): no
/// query sees another document than its own; with the documents' positions, a causal one without
/// mask and dropout has, bit by bit, the result of each document alone; keys and values [B, Tk, KV,
/// D], the further outputs of the layer with the number keys_of. These outputs are with a cache
/// those of all tokens; with one that attends, only for layers with the same cache.
class Attention : public AttentionLayer {
 public:
  explicit Attention(const AttentionOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  const AttentionOptions& options() const { return options_; }

 private:
  void add_projections();
  void add_head_norms();
  void check_heads(std::span<const int> axes) const;
  /// Projected queries or keys (B, T, H D) -> heads (B, T, H, D), normalized and rotated.
  Tensor prepared(const Tensor& projected, const Child& norm,
                  const TokenPositions& positions) const;
  Tensor clipped(const Tensor& projected) const;
  /// What keys are projected to -> values.
  Tensor values_of(const Tensor& x, const Tensor& projected_keys) const;

  AttentionOptions options_;
  Child q_, k_, v_, o_, gate_, q_norm_, k_norm_, v_norm_;
};

/// What makes keys and values of a few features that a token has for all heads.
struct LatentOptions {
  std::int64_t dim = 0;
  std::int64_t heads = 0;
  std::int64_t query_rank = 0;   // of what queries are made from; 0: of hidden_states
  std::int64_t latent_rank = 0;  // of what keys and values are made from
  std::int64_t plain_dim = 0;    // features of a head's queries and keys that are not rotated
  std::int64_t rotated_dim = 0;  // those that are; all heads share the rotated ones of a key
  std::int64_t value_dim = 0;    // features of a head's values
  bool bias = false;             // of what makes the latent features, and of the last projection
  double norm_eps = 1e-6;
  RotaryOptions rotary = {};
  double scale = 0;  // of scores; 0: 1 / sqrt(plain_dim + rotated_dim)
  double standard_deviation = 0.02;
  DType dtype = DType::f32;

  /// Errors (input): extents that are not positive; those of RotaryOptions.
  void check() const;
};

/// Self-attention over latent features: hidden_states [B, T, dim] -> [B, T, dim]. Children q_proj,
/// or q_a_proj, q_a_layernorm and q_b_proj; kv_a_proj_with_mqa, kv_a_layernorm, kv_b_proj, o_proj
/// and inner_attention. Optional inputs as the first ones of Attention. A cache has the latent
/// features and the rotated part of the keys, unless it is split over ranks or kv_b_proj is not a
/// plain Linear: then it has the keys and values of all heads. Source: DeepSeek-V2 (2024), section
/// 2.1.
class LatentAttention : public AttentionLayer {
 public:
  explicit LatentAttention(const LatentOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  /// Whether the cache has latent features.
  bool keeps_latents() const;
  /// With such a cache: queries [B, T, H, D], normalized latent features [B, T, rank] and rotated
  /// keys [B, T, 1, R] -> [B, T, H V].
  Tensor of_latents(const Tensor& q, const Tensor& latent, const Tensor& rotated_keys) const;

  LatentOptions options_;
  Child q_, q_a_, q_norm_, q_b_, kv_a_, kv_norm_, kv_b_, o_;
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

namespace tessera::nn {

/// Causal attention whose heads have sinks [H] (see with_sinks()): its tensors are those of
/// ops::causal_attention.
Tensor attention_with_sinks(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sinks,
                            const ops::CausalOptions& options);

/// The names of an attention layer's inputs.
std::vector<std::string> attention_inputs();

}  // namespace tessera::nn
