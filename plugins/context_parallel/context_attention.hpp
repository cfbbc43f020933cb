#pragma once
// Attention whose sequences are split over the ranks of a mesh axis.
// The importing source must import tessera.tensor and tessera.nn.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace context {

/// How the ranks share the work on a sequence.
enum class Form {
  ring,        // keys and values move around the ranks
  all_to_all,  // heads are exchanged for tokens, and back
  automatic    // heads are exchanged where the ranks can split them
};

struct Settings {
  Form form = Form::automatic;
  bool balance = true;  // of a ring: see RingOrder
};

/// Takes the place of an InnerAttention: the same of q, k and v with Shard(1) along the axis, whose
/// result has it too.
class ContextAttention final : public tessera::nn::Module {
 public:
  ContextAttention(const std::shared_ptr<tessera::nn::InnerAttention>& whole, Settings settings);
  std::string_view kind() const override;
  tessera::Tensors forward(const tessera::Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  /// The mesh axis. Errors (input): a ring of an attention that drops probabilities.
  void split_along(int axis);

 private:
  Form form_of(const tessera::Tensors& inputs) const;
  tessera::Tensor by_heads(const tessera::Tensors& inputs);
  tessera::Tensor by_ring(const tessera::Tensors& inputs) const;

  tessera::nn::AttentionOptions options_;
  Settings settings_;
  tessera::nn::Child whole_;
  int axis_ = -1;
};

}  // namespace context
