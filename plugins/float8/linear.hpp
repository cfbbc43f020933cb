// The layer that takes an nn::Linear's place.
#pragma once

// Included after the imports of tessera's modules.
#include "weights.hpp"

namespace float8 {

/// y = x W^T (+ b), with the parameters, names, splits and hooks of the nn::Linear before it. The
/// three products (y, the gradients of x and of W) are of codes; the bias is added afterwards.
class Float8Linear final : public tessera::nn::Module {
 public:
  Float8Linear(std::shared_ptr<tessera::nn::Module> linear, std::shared_ptr<Weights> weights);
  std::string_view kind() const override;
  tessera::Tensors forward(const tessera::Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  const std::shared_ptr<Weight>& weight() const { return weight_; }

 private:
  tessera::Tensor product(const tessera::Tensor& x);
  /// Errors (input): a rank's part of the weight has extents that are not multiples of 16.
  void check_parts(std::span<const int> axes) const;

  std::shared_ptr<tessera::nn::Module> linear_;
  std::shared_ptr<Weights> weights_;
  std::shared_ptr<Weight> weight_;
};

/// Errors (input): the module, in these words, cannot be computed with scaled products.
void check_replaceable(const tessera::nn::Module& module);

}  // namespace float8
