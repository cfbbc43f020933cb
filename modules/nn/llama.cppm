export module tessera.nn:llama;

import tessera.base;
import tessera.tensor;
import :tree;
import :layers;

export namespace tessera::nn {

/// The sizes of a Llama; the names are the config's keys.
struct LlamaShape {
  std::int64_t vocab = 0;
  std::int64_t dim = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  // 0: dim / heads
  std::int64_t ffn_dim = 0;
  double rope_theta = 10000;
  double norm_eps = 1e-5;
  bool tie_embeddings = false;
  double dropout = 0;
  double standard_deviation = 0.02;  // of the initial weights
  DType dtype = DType::f32;

  /// Errors (input): extents that are not positive, heads that kv_heads does not divide, an odd
  /// head_dim.
  void check() const;
  std::int64_t head_extent() const { return head_dim > 0 ? head_dim : dim / heads; }
};

/// Keys and values of the tokens so far, for generation. Starts empty; its capacity doubles
/// when it is full, so copying costs constant time per token.
struct KeyValueCache {
  struct Layer {
    Tensor keys;    // [B, KV, capacity, D]; undefined before the first token
    Tensor values;  // the same
  };
  std::vector<Layer> layers;
  std::int64_t length = 0;  // tokens, the same in all layers
};

class LlamaAttention : public Module {
 public:
  LlamaAttention(const LlamaShape& shape, int layer, KeyValueCache* const* cache);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;
  void check_placements(std::span<const int> axes) const override;

 private:
  LlamaShape shape_;
  std::size_t layer_;
  KeyValueCache* const* cache_;
  std::shared_ptr<Linear> q_, k_, v_, o_;
};

class LlamaMLP : public Module {
 public:
  explicit LlamaMLP(const LlamaShape& shape);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  std::shared_ptr<Linear> gate_, up_, down_;
};

/// x + attention(norm(x)), then x + mlp(norm(x)).
class LlamaBlock : public Module {
 public:
  LlamaBlock(const LlamaShape& shape, int layer, KeyValueCache* const* cache);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  std::shared_ptr<RMSNorm> input_norm_, post_norm_;
  std::shared_ptr<LlamaAttention> attention_;
  std::shared_ptr<LlamaMLP> mlp_;
  std::shared_ptr<Dropout> attention_dropout_, mlp_dropout_;
};

/// tokens [B, T] (i64) -> hidden states [B, T, dim].
class LlamaModel : public Module {
 public:
  LlamaModel(const LlamaShape& shape, KeyValueCache* const* cache);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  bool activation_checkpointing = false;
  const std::shared_ptr<Embedding>& embedding() const { return embedding_; }

 private:
  std::shared_ptr<Embedding> embedding_;
  std::vector<std::shared_ptr<LlamaBlock>> blocks_;
  std::shared_ptr<RMSNorm> norm_;
};

/// tokens [B, T] -> logits [B, T, vocab]. Built on the meta device; names are Hugging Face's. Its
/// child "loss" is a module beside the model: training code calls loss(logits, targets), so that
/// styles can be applied to it.
class LlamaForCausalLM : public Module {
 public:
  explicit LlamaForCausalLM(const LlamaShape& shape);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  const LlamaShape& shape() const { return shape_; }
  /// Each block recomputes its activations in backward instead of saving them.
  void set_activation_checkpointing(bool enabled);
  /// With a cache, forward takes the tokens that follow those in the cache and appends them; null
  /// for none.
  void set_cache(KeyValueCache* cache) { cache_ = cache; }
  /// logits [B, T, vocab], targets [B, T] -> the sum of the tokens' losses.
  CrossEntropyLoss& loss() { return *loss_; }

 private:
  LlamaShape shape_;
  KeyValueCache* cache_ = nullptr;
  std::shared_ptr<LlamaModel> model_;
  std::shared_ptr<Linear> head_;
  std::shared_ptr<CrossEntropyLoss> loss_;
};

}  // namespace tessera::nn
