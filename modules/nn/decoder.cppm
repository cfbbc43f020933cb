export module tessera.nn:decoder;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :tree;
import :pieces;
import :attention;
import :feed_forward;
import :recurrent;
import :mixture;
import :layers;
import :rotary;
import :language_model;

export namespace tessera::nn {

/// What a layer of a decoder has.
enum class LayerKind : char {
  attention = 'a',
  recurrent = 'r',
  feed_forward = 'f',  // with DecoderShape::one_part, as the next: no mixer of tokens
  experts = 'e'
};

/// Another width of the feed-forward part than ffn_dim: the share of it, rounded up.
struct WidthRule {
  bool gated_share = false;     // 2/3 of it, times `factor`
  double factor = 1;            // 0: 1, without rounding
  std::int64_t multiple = 256;  // the width is a multiple of it
};

/// Which layers of a decoder have queries that grow, and how.
struct GrowingLayers {
  bool enabled = true;
  bool unrotated_only = false;  // of layers that are not rotated
  QueryGrowth queries = {};
};

/// What experts of a few families have besides others.
struct ExpertForm {
  bool bias = false;        // of each expert's projections
  bool logit_bias = false;  // see MixtureOptions, as the next
  bool weigh_inputs = false;
  std::int64_t latent_dim = 0;  // its projections have biases where feed-forward parts have them
  GateLimits limits = {};
};

/// What layers without a window have in the place of what layers with one have.
struct GlobalHeads {
  std::int64_t head_dim = 0;  // 0: as the others, as the next
  std::int64_t kv_heads = 0;
  bool keys_as_values = false;  // see AttentionOptions
  /// Pairs of features are those of a whole head, and this share of them, the first ones, is
  /// rotated; 0: see DecoderShape::rotary_share.
  double rotary_share = 0;
};

/// Several hidden states of a token, of which each layer computes one, and corrects all by it.
/// Source: Baykal et al., Alternating Updates (2023).
struct HiddenStreams {
  std::int64_t count = 1;   // 1: there is one
  std::int64_t active = 0;  // the one that layers compute
  double most = 0;          // coefficients are at most so far from 0 while training; 0: any
  bool scaled = true;       // what embeddings of layers are gated by is multiplied by weights
};

/// A decoder: blocks of causal attention and a feed-forward part or a mixture of them, as this
/// year's families have them. The defaults are a Llama's.
struct DecoderShape {
  std::int64_t vocab = 0;
  std::int64_t dim = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  // 0: dim / heads
  std::int64_t ffn_dim = 0;
  double norm_eps = 1e-5;
  bool tie_embeddings = false;

  // Positions.
  double rope_theta = 10000;
  ops::RotaryScaling rope_scaling = {};
  WavelengthFactors rope_factors = {};  // in the place of a scaling
  double local_rope_theta = 0;   // of layers with a window, without scaling; 0: as the others
  bool local_unscaled = false;   // layers with a window have no scaling
  std::int64_t rotary_dim = 0;   // features of a head that are rotated; 0: see rotary_share
  double rotary_share = 1;       // of a head's features
  bool rotary_pairs = false;     // see RotaryOptions::neighbours
  bool rotary_reversed = false;  // see RotaryOptions
  double rope_stretch = 0;       // see RotaryOptions, as the next
  std::int64_t rope_limit = 0;
  std::vector<std::int64_t> unrotated_layers = {};  // from 0
  std::int64_t unrotated_every = 0;                 // each so many-th layer is not rotated; 0: none
  bool unrotated = false;                           // no layer is rotated
  bool rotate_local_only = false;                   // layers without a window are not rotated

  // Attention.
  bool bias = false;         // of the projections of queries, keys and values
  bool output_bias = false;  // of the projection of the result
  double qkv_clip = 0;       // see AttentionOptions::clip
  HeadNorm query_key_norm = HeadNorm::none;
  bool head_norm_weight = true;  // of these norms
  bool head_norm_bias = false;
  bool norm_after_rotation = false;
  bool attention_gate = false;  // see AttentionOptions::gate
  double score_dim = 0;         // scores are divided by its square root; 0: head_dim
  double attention_scale = 0;   // scores are multiplied by it instead; 0: see score_dim
  double attention_softcap = 0;
  std::int64_t window = 0;        // of layers that do not see all earlier tokens; 0: all do
  std::int64_t global_every = 0;  // with a window, each so many-th layer sees all; 0: none
  std::vector<std::int64_t> global_layers = {};  // and these, from 0
  std::int64_t latent_rank = 0;  // of LatentAttention, as the next; 0: attention is an Attention
  std::int64_t query_rank = 0;
  std::int64_t plain_dim = 0;
  std::int64_t rotated_dim = 0;
  std::int64_t value_dim = 0;  // 0: head_dim

  // Attention of a few families.
  bool sinks = false;      // see AttentionOptions
  std::int64_t chunk = 0;  // see AttentionOptions; of layers that are not among global_layers
  bool norm_rotated_only = false;  // layers that are not rotated do not normalize heads
  GrowingLayers growth = {};
  bool value_norm = false;  // see AttentionOptions
  GlobalHeads global_heads = {};
  /// So many last layers use the keys and values of the last one before them that has a window as
  /// they have, or has none as they have none.
  std::int64_t shared_key_layers = 0;

  // Blocks.
  NormOptions::Kind norm_kind = NormOptions::Kind::rms;
  bool norm_weight = true;
  bool norm_bias = false;
  bool norm_offset = false;     // see NormOptions
  bool norm_inputs = true;      // of attention and feed-forward part
  bool norm_results = false;    // of both, before they are added
  bool parallel_block = false;  // both compute what enters the block, and both results are added
  bool parallel_norms = true;   // each has a norm of its own then; otherwise they share one
  double residual_scale = 1;    // of what they give, before it is added
  double residual_depth = 0;    // and by this, divided by sqrt(layers); 0: not
  /// What enters attention is added too, with what two projections over so many features make of
  /// it, and the sum is divided by sqrt(2). Source: Menghani et al., LAuReL (2024). 0: it is not.
  std::int64_t residual_rank = 0;
  HiddenStreams streams = {};
  bool layer_scale = false;  // what a block gives is multiplied by a number, a buffer of its own
  /// Features of an embedding of each token for each layer, which gates what the layer adds last;
  /// 0: there is none. Tokens from `layer_embedding_vocab` on have that of token 0.
  std::int64_t layer_embedding_dim = 0;
  std::int64_t layer_embedding_vocab = 0;

  // The feed-forward part, embeddings, logits.
  bool gated = true;  // see FeedForwardOptions
  Activation activation = Activation::silu;
  bool ffn_bias = false;
  std::vector<double> gate_sparsity = {};  // see FeedForwardOptions, of each layer; empty: 0
  bool wide_shared_layers = false;  // those of shared_key_layers are twice as wide as ffn_dim
  bool scale_embeddings = false;    // by sqrt(dim)
  double embedding_scale = 1;       // and by this
  bool embedding_norm = false;      // what the embedding gives is normalized, without weights
  bool head_bias = false;           // of the logits
  double logit_scale = 1;           // logits are multiplied by it
  double logit_divisor = 1;         // and divided by this
  std::int64_t logit_base = 0;      // and by dim / this; 0: not
  double logit_softcap = 0;         // logits become softcap tanh(logits / softcap); 0: they stay

  // Layers whose feed-forward part is a mixture of experts (see MixtureOptions).
  std::int64_t experts = 0;  // of each such layer; 0: there are none
  std::int64_t experts_per_token = 0;
  std::int64_t expert_dim = 0;  // features of one; 0: ffn_dim
  bool normalize_experts = true;
  RouterScore router_score = RouterScore::softmax;
  double expert_scale = 1;
  std::int64_t expert_groups = 1;
  GroupScore group_score = GroupScore::two_best;
  std::int64_t groups_per_token = 1;
  std::int64_t shared_expert_dim = 0;  // of the expert of all tokens; 0: see shared_experts
  std::int64_t shared_experts = 0;     // so many times as wide as one of the others; 0: none
  bool shared_expert_gate = false;
  bool router_bias = false;  // of the scores by which experts are chosen; no gradient trains it
  std::int64_t experts_every = 1;               // each so many-th layer is one
  std::vector<std::int64_t> dense_layers = {};  // but not these, from 0
  std::int64_t first_dense_layers = 0;          // nor the first ones
  std::int64_t last_expert_layer = -1;          // nor those after it; -1: the last layer
  ExpertForm expert_form = {};

  // Layers of several kinds.
  /// The letter of each layer's LayerKind, again from the first one after the last one; empty: all
  /// attend.
  std::string layer_pattern = {};
  bool one_part = false;  // a layer has a mixer of tokens or a feed-forward part, not both
  RecurrentOptions recurrent = {};  // of the recurrent ones; `dim` and what all layers share follow
  WidthRule ffn_rule = {};
  bool shared_dense = false;  // the expert of all tokens is as wide as a dense part, ffn_dim
  /// So many layers after the last one predict tokens after the next one, while training (see
  /// FurtherBlock).
  std::int64_t further_layers = 0;

  double dropout = 0;
  double standard_deviation = 0.02;  // of the initial weights
  DType dtype = DType::f32;

  /// Errors (input): extents that are not positive, heads that kv_heads does not divide, those of
  /// RotaryOptions, LatentOptions, RecurrentOptions and MixtureOptions; what check_shared()
  /// refuses.
  void check() const;
  /// Errors (input): layers that use the keys of others without one that has them, or with experts,
  /// chunks or recurrent layers; a stream that does not exist.
  void check_shared() const;
  /// What a layer, from 0, has.
  LayerKind layer_kind(std::int64_t layer) const;
  /// Whether any layer has this.
  bool has_kind(LayerKind kind) const;
  /// Whether a layer, from 0, mixes tokens, and whether it has a feed-forward part.
  bool has_mixer(std::int64_t layer) const;
  bool has_feed_forward(std::int64_t layer) const;
  /// The width of a dense feed-forward part, and that of a layer, from 0.
  std::int64_t ffn_extent() const;
  std::int64_t ffn_extent(std::int64_t layer) const;
  std::int64_t head_extent() const { return head_dim > 0 ? head_dim : dim / heads; }
  /// Those of a layer, from 0, with attention: features of a head, heads of keys, the layer whose
  /// keys and values it uses (its own number: its own), whether another layer uses its own, and
  /// whether it has a projection of values.
  std::int64_t head_extent(std::int64_t layer) const;
  std::int64_t key_heads(std::int64_t layer) const;
  std::int64_t key_layer(std::int64_t layer) const;
  bool gives_keys(std::int64_t layer) const;
  bool projects_values(std::int64_t layer) const;
  /// How many features of a head are rotated in layers that rotate any.
  std::int64_t rotary_extent() const;
  /// Whether a layer, from 0, has the window.
  bool has_window(std::int64_t layer) const;
  /// Whether a layer, from 0, has chunks.
  bool has_chunks(std::int64_t layer) const;
  /// Whether a layer, from 0, rotates queries and keys.
  bool is_rotated(std::int64_t layer) const;
  /// Whether a layer, from 0, has experts.
  bool has_experts(std::int64_t layer) const;
  /// The features of a head's values in attention over latent features.
  std::int64_t value_extent() const { return value_dim > 0 ? value_dim : head_extent(); }
  /// What logits are multiplied by.
  double logit_factor() const;
  /// What a part of a block gives is multiplied by, before it is added.
  double residual_factor() const;
  /// The width of one expert.
  std::int64_t expert_extent() const { return expert_dim > 0 ? expert_dim : ffn_dim; }
  /// The width of the expert of all tokens; 0: there is none.
  std::int64_t shared_extent() const {
    return shared_dense            ? ffn_dim
           : shared_expert_dim > 0 ? shared_expert_dim
                                   : shared_experts * expert_extent();
  }
  // The parts of a layer.
  NormOptions norm() const;
  RotaryOptions rotary(std::int64_t layer) const;
  AttentionOptions attention(std::int64_t layer) const;
  LatentOptions latent(std::int64_t layer) const;
  RecurrentOptions recurrence() const;
  FeedForwardOptions feed_forward() const;
  FeedForwardOptions feed_forward(std::int64_t layer) const;
  MixtureOptions mixture() const;
};

/// x + self_attn(norm(x)), then x + mlp(norm(x)); DecoderShape says which norms there are, whether
/// both parts compute the same x, and whether a layer has `recurrent` in the place of self_attn, or
/// only one of the two parts. Hidden states are [B, T, dim], with several streams [B, T, streams,
/// dim]. Optional inputs: documents and positions, of attention; the layer's embedding [B, T, E];
/// keys and values of another layer. Further outputs: keys and values that other layers use, or
/// that of a SparseMixture that has one. Names of norms are those of transformers: what follows
/// attention is post_attention_layernorm, whether it normalizes the result or the sum.
class DecoderBlock : public Module {
 public:
  DecoderBlock(const DecoderShape& shape, std::int64_t layer);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  void add_mixer(const DecoderShape& shape, std::int64_t layer);
  void add_further_parts(const DecoderShape& shape);
  void add_feed_forward(const DecoderShape& shape, std::int64_t layer);
  void add_norms(const DecoderShape& shape);
  /// The outputs for the hidden states of one stream, without what the layer's embedding adds.
  Tensors computed(const Tensors& inputs, const Tensor& x);
  /// What attention gives, with its further outputs.
  Tensors attended(const Tensors& inputs, const Tensor& x);
  /// What the layer's embedding adds to hidden states, gated by x.
  Tensor of_embedding(const Tensor& x, const Tensor& embedding) const;
  /// A part's result as it is added.
  Tensor finished(Tensor result, const Child& norm, const Child& dropout) const;

  bool parallel_;
  double residual_scale_;
  bool gives_keys_;
  std::int64_t active_stream_;
  Child attention_norm_, mlp_norm_, attention_, mlp_, attention_dropout_, mlp_dropout_;
  Child attended_norm_, computed_norm_;  // of the results
  Activation activation_;
  Child streams_, residual_;
  Child embedding_gate_, embedding_projection_, embedding_norm_;
};

/// A layer that predicts the token after the one that the layer before it predicts: its inputs are
/// that one's hidden states [B, T, dim], the embeddings of the tokens that these predict [B, T,
/// dim], documents and positions. norm(hidden states) and norm(embeddings) are projected together
/// (eh_proj), and the result goes through the block. Outputs: its hidden states, the same
/// normalized for the head, and the output of a SparseMixture that has one. Source: DeepSeek-V3
/// (2024), section 2.2; which norms there are: the model's folder (enorm, hnorm, shared_head.norm).
class FurtherBlock : public DecoderBlock {
 public:
  FurtherBlock(const DecoderShape& shape, std::int64_t layer);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  Child embedded_norm_, hidden_norm_, projection_, head_norm_;
};

/// tokens [B, T] (i64) -> hidden states [B, T, dim]. Optional inputs: those of RowDocuments.
/// Further outputs: while training, those of each FurtherBlock for the head; then the sum of the
/// terms of blocks that have some.
class Decoder : public Module {
 public:
  explicit Decoder(const DecoderShape& shape);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  bool activation_checkpointing = false;
  PieceRange pieces;  // of its own: the embedding, each block, and the norm in what ends the chain
  Module& embedding() const { return *embedding_; }

 private:
  /// Adds what only some families have around the blocks.
  void add_layer_embeddings();
  void add_streams();
  Tensor embedded(const Tensor& tokens);
  /// The embeddings of all layers [B, T, layers, E].
  Tensor layer_embeddings(const Tensor& tokens, const Tensor& embedded);
  /// Hidden states of all streams [B, T, streams, dim], and one of them all.
  Tensor opened(const Tensor& hidden);
  Tensor closed(const Tensor& streams);
  /// The blocks where a layer has an embedding, or keys of another one.
  Tensor linked(Tensor hidden, const Tensor& embeddings, const Tensors& documents);
  Tensors further(const Tensors& inputs, Tensor hidden, Tensor* terms);

  DecoderShape shape_;
  Child embedding_, embedding_norm_;
  double embedding_scale_ = 1;
  Child layer_embedding_, layer_projection_, layer_norm_;
  std::vector<Child> openings_, closings_;  // of streams
  std::vector<Child> blocks_, further_;
  Child norm_;
};

/// tokens [B, T] -> logits [B, T, vocab]. Built on the meta device; names are Hugging Face's.
class DecoderLM : public LanguageModel {
 public:
  explicit DecoderLM(const DecoderShape& shape);
  std::string_view kind() const override;
  bool takes_documents() const override { return true; }
  /// The embedding, each block, the norm with the head.
  std::vector<std::vector<std::string>> pieces() const override;

  const DecoderShape& shape() const { return shape_; }
  void set_activation_checkpointing(bool enabled) override;

 protected:
  Tensor hidden_states(const Tensors& inputs) override;

 private:
  DecoderShape shape_;
  std::shared_ptr<Decoder> model_;
};

}  // namespace tessera::nn
