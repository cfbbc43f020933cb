// The modules of a GPT-2. Names are Hugging Face's, but the fused projection of queries, keys and
// values is three layers, so that a mesh axis splits each of them by heads.
// Included after the imports of tessera.{base,tensor,nn}.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpt2 {

struct Shape {
  std::int64_t vocab = 0;
  std::int64_t dim = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t ffn_dim = 0;
  std::int64_t positions = 0;
  double norm_eps = 1e-5;
  bool tie_embeddings = true;
  double dropout = 0;
};

/// c_proj(gelu(c_fc(x))).
class Mlp : public tessera::nn::Module {
 public:
  explicit Mlp(const Shape& shape);
  std::string_view kind() const override;
  tessera::Tensors forward(const tessera::Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  tessera::nn::Child wide_, gelu_, narrow_;
};

/// x + attention(norm(x)), then x + mlp(norm(x)). Optional input: documents, of attention.
class Block : public tessera::nn::Module {
 public:
  explicit Block(const Shape& shape);
  std::string_view kind() const override;
  tessera::Tensors forward(const tessera::Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  tessera::nn::Child attention_norm_, attention_, mlp_norm_, mlp_, attention_dropout_, mlp_dropout_;
};

/// tokens [B, T] (i64) -> hidden states [B, T, dim]. Optional inputs: those of RowDocuments.
class Model : public tessera::nn::Module {
 public:
  explicit Model(const Shape& shape);
  std::string_view kind() const override;
  tessera::Tensors forward(const tessera::Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  tessera::nn::PieceRange
      pieces;              // the embeddings, each block, and the norm in what ends the chain
  bool recompute = false;  // each block's activations, in backward
  const tessera::nn::KeyValueCache* cache = nullptr;  // it has the tokens' positions
  tessera::nn::Module& embedding() const { return *embedding_; }
  bool has_dropout() const { return static_cast<bool>(dropout_); }

 private:
  tessera::nn::Child embedding_, positions_, dropout_, norm_;
  std::vector<tessera::nn::Child> blocks_;
};

/// tokens [B, T] -> logits [B, T, vocab].
class LanguageModel : public tessera::nn::LanguageModel {
 public:
  explicit LanguageModel(const Shape& shape);
  std::string_view kind() const override;
  bool takes_documents() const override { return true; }
  /// The embeddings, each block, the norm with the head.
  std::vector<std::vector<std::string>> pieces() const override;
  void set_activation_checkpointing(bool enabled) override;
  void set_cache(tessera::nn::KeyValueCache* cache) override;

 protected:
  tessera::Tensor hidden_states(const tessera::Tensors& inputs) override;

 private:
  std::int64_t layers_;
  std::shared_ptr<Model> model_;
};

}  // namespace gpt2
