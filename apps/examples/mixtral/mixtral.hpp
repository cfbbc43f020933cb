// The modules of a Mixtral: a Llama whose feed-forward parts are mixtures of experts.
// Included after the imports of tessera.{base,tensor,nn}.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mixtral {

struct Shape {
  tessera::nn::DecoderShape llama;
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 0;
};

/// The experts of one layer: hidden_states [..., dim], and for each token the weights and the
/// numbers (i64) of its experts, both [..., experts_per_token] -> [..., dim]. Parameters gate_proj
/// and up_proj [experts, ffn, dim], down_proj [experts, dim, ffn]. The split "experts" gives each
/// rank of an axis some experts; the tokens must be split along that axis too, and each travels to
/// the ranks that have its experts, and back.
class Experts : public tessera::nn::Module {
 public:
  explicit Experts(const Shape& shape);
  std::string_view kind() const override;
  tessera::Tensors forward(const tessera::Tensors& inputs) override;
  std::vector<std::string> input_names() const override;
  std::vector<tessera::nn::LayerSplit> splits() const override;
};

/// hidden_states [..., dim] -> [..., dim]: the sum of each token's experts, weighted by the largest
/// probabilities of the router, which are scaled to sum to 1. Source: Jiang et al., Mixtral of
/// Experts (2024), section 2.1.
class SparseMixture : public tessera::nn::Module {
 public:
  explicit SparseMixture(const Shape& shape);
  std::string_view kind() const override;
  tessera::Tensors forward(const tessera::Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  std::int64_t experts_per_token_;
  tessera::nn::Child gate_, experts_;
};

/// Tessera's Llama with each `mlp` replaced by a SparseMixture.
class LanguageModel : public tessera::nn::DecoderLM {
 public:
  explicit LanguageModel(const Shape& shape);
  std::string_view kind() const override;
};

}  // namespace mixtral
