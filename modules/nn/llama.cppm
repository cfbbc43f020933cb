export module tessera.nn:llama;

import tessera.base;
import tessera.tensor;
import :tree;
import :attention;
import :layers;
import :language_model;

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

class LlamaMLP : public Module {
 public:
  explicit LlamaMLP(const LlamaShape& shape);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  Child gate_, up_, down_;
};

/// x + attention(norm(x)), then x + mlp(norm(x)).
class LlamaBlock : public Module {
 public:
  explicit LlamaBlock(const LlamaShape& shape);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  Child input_norm_, post_norm_, attention_, mlp_, attention_dropout_, mlp_dropout_;
};

/// tokens [B, T] (i64) -> hidden states [B, T, dim].
class LlamaModel : public Module {
 public:
  explicit LlamaModel(const LlamaShape& shape);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  bool activation_checkpointing = false;
  Module& embedding() const { return *embedding_; }

 private:
  Child embedding_;
  std::vector<Child> blocks_;
  Child norm_;
};

/// tokens [B, T] -> logits [B, T, vocab]. Built on the meta device; names are Hugging Face's.
class LlamaForCausalLM : public LanguageModel {
 public:
  explicit LlamaForCausalLM(const LlamaShape& shape);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;

  const LlamaShape& shape() const { return shape_; }
  void set_activation_checkpointing(bool enabled) override;

 private:
  LlamaShape shape_;
  std::shared_ptr<LlamaModel> model_;
  Child head_;
};

}  // namespace tessera::nn
