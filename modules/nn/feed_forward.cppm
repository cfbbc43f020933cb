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

  /// The next forward calls `work` once, before its last projection.
  void compute_between(std::function<void()> work);

 private:
  Activation activation_;
  Child gate_, up_, down_;
  std::function<void()> between_;
};

}  // namespace tessera::nn

namespace tessera::nn {

/// activation(gate) * up.
Tensor gated(Activation activation, const Tensor& gate, const Tensor& up);

}  // namespace tessera::nn
