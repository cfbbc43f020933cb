module;
#include <cstdint>
#include <memory>
#include <string_view>
export module tessera.nn:layers;

import tessera.base;
import tessera.tensor;
import :tree;

export namespace tessera::nn {

/// y = x W^T (+ b): x [..., in], weight [out, in], bias [out].
class Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, bool bias, double deviation, DType dtype = DType::f32);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
};

/// Rows of weight [count, dim] by integer indices of any shape.
class Embedding : public Module {
 public:
  Embedding(std::int64_t count, std::int64_t dim, double deviation, DType dtype = DType::f32);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
};

/// x / rms(x) * weight over the last dim.
class RMSNorm : public Module {
 public:
  RMSNorm(std::int64_t dim, double eps, DType dtype = DType::f32);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;

 private:
  double eps_;
};

/// Zeroes elements with probability p while training and scales the rest by 1 / (1 - p). Stream
/// "dropout".
class Dropout : public Module {
 public:
  explicit Dropout(double p);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;

 private:
  double p_;
};

}  // namespace tessera::nn
