// A linear layer with a low-rank update. Include it after the imports.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

/// y = x W^T + scale dropout(x) A^T B^T (+ b): x [..., in], W [out, in] and b [out] of the layer
/// before, A [rank, in], B [out, rank]. With dora (Liu et al. 2024, as PEFT computes it) the sum is
/// multiplied by magnitude [out] / |W + scale B A|, a norm for each row that no gradient passes.
/// With the packing "nf4", W is kept as codes and scales (nf4.hpp), and exists as a whole only
/// while the layer computes. Split by columns (out) or rows (in), as nn::Linear.
class LoraLinear final : public tessera::nn::Module {
 public:
  /// Takes the place of `base`, an nn::Linear, and its parameters. Errors (input): a weight that
  /// cannot be packed.
  LoraLinear(const tessera::nn::Module& base, const tessera::nn::LowRankUpdate& update);
  std::string_view kind() const override { return "LoraLinear"; }
  std::vector<std::string> input_names() const override { return {"input"}; }
  tessera::Tensors forward(const tessera::Tensors& inputs) override;

  /// Sets the magnitude to the norms of the rows of W, while B is 0: y is then that of the layer
  /// before. All ranks together.
  void set_magnitude();

 private:
  std::vector<tessera::nn::LayerSplit> splits() const;
  /// Error (input): a split that cuts blocks of the packed weight.
  void check_blocks(std::span<const int> axes) const;
  bool is_packed() const { return !update_.packing.empty(); }
  tessera::Tensor bias() const;
  /// W as the layer uses it, in the type of the update. Of a packed one, a new tensor; the function
  /// makes it, also when the module is gone.
  tessera::Tensor weight() const { return is_packed() ? unpacker()() : parameter("weight")->use(); }
  std::function<tessera::Tensor()> unpacker() const;
  /// x W^T with this W; a packed one is not kept for backward, but made again.
  tessera::Tensor product(const tessera::Tensor& x, const tessera::Tensor& weight) const;
  void pack(const tessera::Tensor& values) const;

  tessera::nn::LowRankUpdate update_;
  tessera::Dims shape_;  // of W
};

}  // namespace qlora
