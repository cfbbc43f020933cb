export module tessera.nn:feed_forward;

import tessera.base;
import tessera.tensor;
import :parameter;
import :tree;

export namespace tessera::nn {

/// What a feed-forward part applies to its gate.
enum class Activation { silu, gelu_tanh };

/// A gated feed-forward part: down(activation(gate(x)) * up(x)).
struct FeedForwardOptions {
  std::int64_t dim = 0;
  std::int64_t width = 0;  // features between the projections
  Activation activation = Activation::silu;
  bool bias = false;  // of the three projections
  double standard_deviation = 0.02;
  DType dtype = DType::f32;
};

/// x [..., dim] -> [..., dim].
class GatedMLP : public Module {
 public:
  explicit GatedMLP(const FeedForwardOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  Activation activation_;
  Child gate_, up_, down_;
};

/// A mixture of experts: many feed-forward parts, of which each token has a few.
struct MixtureOptions {
  FeedForwardOptions expert;  // one of them; without biases
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 0;
  bool normalize = true;  // the weights of a token's experts sum to 1

  /// Errors (input): no experts, more per token than there are, biases.
  void check() const;
};

/// The experts of one layer: hidden_states [..., dim], and for each token the weights and the
/// numbers (i64) of its experts, both [..., experts_per_token] -> [..., dim]. Parameters gate_proj
/// and up_proj [experts, width, dim], down_proj [experts, dim, width].
///
/// Two splits, also together on two axes. "experts": each rank has some experts; the tokens must be
/// split along that axis too, and each travels to the ranks that have its experts, and back.
/// "rows": each rank has some features of every expert, and computes one term of the result.
class Experts : public Module {
 public:
  explicit Experts(const MixtureOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;
  std::vector<LayerSplit> splits() const override;

 private:
  Activation activation_;
};

/// hidden_states [..., dim] -> [..., dim]: the sum of each token's experts, weighted by the largest
/// probabilities of the router, the softmax over all experts. Source: Jiang et al., Mixtral of
/// Experts (2024), section 2.1.
class SparseMixture : public Module {
 public:
  explicit SparseMixture(const MixtureOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  std::int64_t experts_per_token_;
  bool normalize_;
  Child gate_, experts_;
};

}  // namespace tessera::nn

namespace tessera::nn {

/// activation(gate) * up.
Tensor gated(Activation activation, const Tensor& gate, const Tensor& up);

}  // namespace tessera::nn
