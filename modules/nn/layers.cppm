export module tessera.nn:layers;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :parameter;
import :tree;

export namespace tessera::nn {

/// y = x W^T (+ b): x [..., in], weight [out, in], bias [out]. Split by columns (out) or rows (in).
class Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, bool bias, double standard_deviation,
         DType dtype = DType::f32);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;
};

/// Rows of weight [count, dim] by integer indices of any shape. Split by columns (dim) or rows
/// (count).
class Embedding : public Module {
 public:
  Embedding(std::int64_t count, std::int64_t dim, double standard_deviation,
            DType dtype = DType::f32);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;
};

/// What a norm over the last dim computes.
struct NormOptions {
  enum class Kind { rms, layer };
  Kind kind = Kind::rms;
  double eps = 1e-5;
  bool weight = true;   // what is normalized is multiplied by weights
  bool bias = false;    // of Kind::layer, with weights
  bool offset = false;  // of Kind::rms: the factor is 1 + weight, and weights begin with 0 (Gemma)
};

/// An RMSNorm or a LayerNorm over this many features.
std::shared_ptr<Module> make_norm(std::int64_t features, const NormOptions& options,
                                  DType dtype = DType::f32);

/// x / rms(x) * weight over the last dim.
class RMSNorm : public Module {
 public:
  /// With `offset`, the factor is 1 + weight, and weights begin with 0 (Gemma). Without `weight`,
  /// it is 1.
  RMSNorm(std::int64_t dim, double eps, DType dtype = DType::f32, bool offset = false,
          bool weight = true);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  double eps_;
  bool offset_;
};

/// (x - mean) / sqrt(var + eps) * weight (+ bias) over the last dim.
class LayerNorm : public Module {
 public:
  /// Without `weight`, there is no bias either.
  explicit LayerNorm(std::int64_t dim, double eps = 1e-5, bool bias = true,
                     DType dtype = DType::f32, bool weight = true);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  double eps_;
};

/// Heads x [..., H, D] -> the same: a norm over each head's features, multiplied by weights of the
/// head: weight [H, D]. Split by columns (heads), whose input and output are Shard(-2).
class HeadNorms : public Module {
 public:
  /// Errors: options with a bias or an offset.
  HeadNorms(std::int64_t heads, std::int64_t head_dim, const NormOptions& options,
            DType dtype = DType::f32);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  Child plain_;
};

/// x Phi(x), with the exact normal distribution or its form by tanh.
class Gelu : public Module {
 public:
  explicit Gelu(bool tanh_form = false);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  bool tanh_form_;
};

/// Images [N, in, H, W] -> [N, out, H', W'] (see ops::conv2d): weight [out, in / groups, kh, kw],
/// bias [out]. Split by columns (out), without groups.
class Conv2d : public Module {
 public:
  /// Errors: channels that the groups do not divide; a kernel that is not two sizes.
  Conv2d(std::int64_t in, std::int64_t out, const Dims& kernel, const ops::Convolution& settings,
         bool bias, double standard_deviation, DType dtype = DType::f32);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  ops::Convolution settings_;
};

/// Zeroes elements with probability p while training and scales the rest by 1 / (1 - p). Draws from
/// the stream "dropout" by batch row: dim 0 of the input is the batch (by_batch_row).
class Dropout : public Module {
 public:
  explicit Dropout(double p);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  double p_;
};

/// The SUM over all tokens of -log softmax(input)[target]: input (logits) [..., vocab], target
/// [...] (i64), one output, a scalar. Tokens whose target is ignore_index are ignored. Split by
/// classes (vocab).
class CrossEntropyLoss : public Module {
 public:
  explicit CrossEntropyLoss(std::int64_t ignore_index = -100);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;
  /// The loss of each token, [...], f32; 0 where the target is ignore_index. Called with the hooks
  /// around it, as forward.
  Tensor rows(const Tensor& input, const Tensor& target);
  /// Whether the split "classes" is applied: the vocabulary may be sharded. The ranks then
  /// all-reduce a few numbers per token, and the logits are not moved (see ops::cross_entropy).
  bool takes_classes_of_ranks() const { return loss_parallel_; }
  std::int64_t ignore_index() const { return ignore_index_; }

 private:
  std::int64_t ignore_index_;
  bool loss_parallel_ = false;
};

}  // namespace tessera::nn
