export module tessera.nn:decoder;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :tree;
import :pieces;
import :attention;
import :feed_forward;
import :mixture;
import :layers;
import :language_model;

export namespace tessera::nn {

/// A decoder: blocks of causal attention and a gated feed-forward part or a mixture of them, as the
/// families Llama, Mistral, Qwen and Gemma have them. The defaults are a Llama's.
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
  double local_rope_theta = 0;  // of layers with a window, without scaling; 0: as the others

  // Attention.
  bool bias = false;            // of the projections of queries, keys and values
  bool output_bias = false;     // of the projection of the result
  bool query_key_norm = false;  // see AttentionOptions
  double score_dim = 0;         // scores are divided by its square root; 0: head_dim
  double attention_softcap = 0;
  std::int64_t window = 0;        // of layers that do not see all earlier tokens; 0: all do
  std::int64_t global_every = 0;  // with a window, each so many-th layer sees all; 0: none

  // The feed-forward part, norms, embeddings, logits.
  Activation activation = Activation::silu;
  bool ffn_bias = false;
  bool norm_results = false;      // of attention and feed-forward part, before they are added
  bool norm_offset = false;       // see RMSNorm
  bool scale_embeddings = false;  // by sqrt(dim)
  double logit_softcap = 0;       // logits become softcap tanh(logits / softcap); 0: they stay

  // Layers whose feed-forward part is a mixture of experts (see MixtureOptions).
  std::int64_t experts = 0;  // of each such layer; 0: there are none
  std::int64_t experts_per_token = 0;
  std::int64_t expert_dim = 0;  // features of one; 0: ffn_dim
  bool normalize_experts = true;
  RouterScore router_score = RouterScore::softmax;
  double expert_scale = 1;
  std::int64_t expert_groups = 1;
  std::int64_t groups_per_token = 1;
  std::int64_t shared_expert_dim = 0;  // of the expert of all tokens; 0: see shared_experts
  std::int64_t shared_experts = 0;     // so many times as wide as one of the others; 0: none
  bool shared_expert_gate = false;
  bool router_bias = false;  // of the scores by which experts are chosen; no gradient trains it
  std::int64_t experts_every = 1;               // each so many-th layer is one
  std::vector<std::int64_t> dense_layers = {};  // but not these, from 0
  std::int64_t first_dense_layers = 0;          // nor the first ones

  double dropout = 0;
  double standard_deviation = 0.02;  // of the initial weights
  DType dtype = DType::f32;

  /// Errors (input): extents that are not positive, heads that kv_heads does not divide, an odd
  /// head_dim; those of MixtureOptions.
  void check() const;
  std::int64_t head_extent() const { return head_dim > 0 ? head_dim : dim / heads; }
  /// Whether a layer, from 0, has the window.
  bool has_window(std::int64_t layer) const {
    return window > 0 && (global_every == 0 || (layer + 1) % global_every != 0);
  }
  /// Whether a layer, from 0, has experts.
  bool has_experts(std::int64_t layer) const;
  /// The width of one expert.
  std::int64_t expert_extent() const { return expert_dim > 0 ? expert_dim : ffn_dim; }
  /// The width of the expert of all tokens; 0: there is none.
  std::int64_t shared_extent() const {
    return shared_expert_dim > 0 ? shared_expert_dim : shared_experts * expert_extent();
  }
  /// The feed-forward part of a layer that has experts, and of one that has none.
  MixtureOptions mixture() const;
  FeedForwardOptions feed_forward() const;
};

/// x + attention(norm(x)), then x + mlp(norm(x)); with norm_results, what is added is normalized
/// too. Optional inputs: documents and positions, of attention. A second output: that of a
/// SparseMixture that has one. Names of norms are those of transformers: what follows attention is
/// post_attention_layernorm, whether it normalizes the result or the sum.
class DecoderBlock : public Module {
 public:
  DecoderBlock(const DecoderShape& shape, std::int64_t layer);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  Child attention_norm_, mlp_norm_, attention_, mlp_, attention_dropout_, mlp_dropout_;
  Child attended_norm_, computed_norm_;  // of the results
};

/// tokens [B, T] (i64) -> hidden states [B, T, dim]. Optional inputs: those of RowDocuments. A
/// second output: the sum of those of the blocks that have one.
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
  Child embedding_;
  double embedding_scale_ = 1;
  std::vector<Child> blocks_;
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
