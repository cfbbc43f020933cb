export module tessera.nn:feed_forward;

import tessera.base;
import tessera.tensor;
import :parameter;
import :tree;

export namespace tessera::nn {

/// What a feed-forward part applies to its gate, or between its projections.
enum class Activation {
  silu,
  gelu_tanh,
  gelu,
  relu,
  squared_relu,
  xielu  // see LearnedActivation; only of parts without a gate
};

/// A gate with limits: (up + 1) gate sigmoid(slope gate), of a gate that is at most `most`, and an
/// up that is at most so far from 0. Source: OpenAI (2025).
struct GateLimits {
  double most = 0;  // 0: there are none, and the activation counts
  double slope = 1.702;

  /// Errors (input): a number below 0, or that is none.
  void check() const;
};

/// A feed-forward part: down(activation(gate(x)) * up(x)), or down(activation(up(x))).
struct FeedForwardOptions {
  std::int64_t dim = 0;
  std::int64_t width = 0;  // features between the projections
  bool gated = true;
  Activation activation = Activation::silu;
  GateLimits limits = {};  // of a gate
  /// Of a gate's features this share is 0, as if they were drawn from a normal distribution: what
  /// is below their mean and so many of their standard deviations, which is subtracted from the
  /// others, before the activation. 0: they stay. Source: Gemma 3n (2025).
  double sparsity = 0;
  bool bias = false;  // of the projections
  double standard_deviation = 0.02;
  DType dtype = DType::f32;
};

/// For x > 0: p x^2 + beta x, p = softplus(alpha_p); otherwise (expm1(min(x, eps)) - x) n + beta x,
/// n = beta + softplus(alpha_n). x [..., F] -> the same. Parameters alpha_p and alpha_n [1];
/// buffers beta and eps, scalars. Source: Huang et al., xIELU (2024).
class LearnedActivation : public Module {
 public:
  explicit LearnedActivation(DType dtype);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;
};

/// down(activation(gate(x)) * up(x)): x [..., dim] -> [..., dim].
class GatedMLP : public Module {
 public:
  explicit GatedMLP(const FeedForwardOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  /// The next forward calls `work` once, before its last projection.
  void compute_between(std::function<void()> work);

 private:
  Activation activation_;
  GateLimits limits_;
  double sparsity_;
  Child gate_, up_, down_;
  std::function<void()> between_;
};

/// down(activation(up(x))): x [..., dim] -> [..., dim]. A LearnedActivation is its child act_fn.
class PlainMLP : public Module {
 public:
  explicit PlainMLP(const FeedForwardOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  Activation activation_;
  Child up_, down_;
  Child learned_;  // in the place of activation_
};

}  // namespace tessera::nn

namespace tessera::nn {

Tensor activated(Activation activation, const Tensor& x);
/// activation(gate) * up, or what is computed in its place with limits.
Tensor gated(Activation activation, const GateLimits& limits, const Tensor& gate, const Tensor& up);

}  // namespace tessera::nn
