module;
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {
namespace {

ParameterPointer normal(const Dims& shape, DType dtype, double standard_deviation) {
  return std::make_shared<Parameter>(
      shape, dtype, Initialization{Initialization::Kind::normal, standard_deviation});
}

/// The second parameter of a layer; undefined where it has none.
Tensor bias_of(const Module& layer) {
  return layer.parameters().size() > 1 ? layer.parameters()[1].second->use() : Tensor();
}

/// The split whose ranks have some features of the output, which are in dim 0 of all parameters.
LayerSplit by_columns(const Module& layer, Placement output) {
  LayerSplit columns{.name = "columns", .inputs = {Replicate()}, .output = output};
  for (const auto& [name, parameter] : layer.parameters()) {
    columns.parameters.push_back({parameter, Shard(0)});
  }
  return columns;
}

std::vector<LayerSplit> splits_of_embedding(const Module& layer) {
  const ParameterPointer& weight = layer.parameter("weight");
  return {{.name = "columns",
           .parameters = {{weight, Shard(1)}},
           .inputs = {Replicate()},
           .output = Shard(-1)},
          {.name = "rows",
           .parameters = {{weight, Shard(0)}},
           .inputs = {Replicate()},
           .output = Partial()}};
}

}  // namespace

Linear::Linear(std::int64_t in, std::int64_t out, bool bias, double standard_deviation,
               DType dtype) {
  add_parameter("weight", normal({out, in}, dtype, standard_deviation));
  if (bias) {
    add_parameter("bias", std::make_shared<Parameter>(Dims{out}, dtype, Initialization{}));
  }
  attach<LayerSplits>().declared = [this] {
    return std::vector<LayerSplit>{by_columns(*this, Shard(-1)),
                                   {.name = "rows",
                                    .parameters = {{parameter("weight"), Shard(1)}},
                                    .inputs = {Shard(-1)},
                                    .output = Partial()}};
  };
}

std::string_view Linear::kind() const { return "Linear"; }
std::vector<std::string> Linear::input_names() const { return {"input"}; }

Tensors Linear::forward(const Tensors& inputs) {
  return {ops::linear(input(inputs, 0), parameters()[0].second->use(), bias_of(*this))};
}

Embedding::Embedding(std::int64_t count, std::int64_t dim, double standard_deviation, DType dtype) {
  add_parameter("weight", normal({count, dim}, dtype, standard_deviation));
  attach<LayerSplits>().declared = [this] { return splits_of_embedding(*this); };
}

std::string_view Embedding::kind() const { return "Embedding"; }
std::vector<std::string> Embedding::input_names() const { return {"input"}; }

Tensors Embedding::forward(const Tensors& inputs) {
  return {ops::embedding(parameters()[0].second->use(), input(inputs, 0))};
}

std::shared_ptr<Module> make_norm(std::int64_t features, const NormOptions& options, DType dtype) {
  if (options.kind == NormOptions::Kind::rms) {
    return std::make_shared<RMSNorm>(features, options.eps, dtype, options.offset, options.weight);
  }
  return std::make_shared<LayerNorm>(features, options.eps, options.bias, dtype, options.weight);
}

RMSNorm::RMSNorm(std::int64_t dim, double eps, DType dtype, bool offset, bool weight)
    : eps_(eps), offset_(offset) {
  const Initialization ones{Initialization::Kind::ones, 0};
  if (weight) {
    add_parameter("weight",
                  std::make_shared<Parameter>(Dims{dim}, dtype, offset ? Initialization{} : ones));
  }
}

std::string_view RMSNorm::kind() const { return "RMSNorm"; }
std::vector<std::string> RMSNorm::input_names() const { return {"hidden_states"}; }

Tensors RMSNorm::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);
  if (parameters().empty()) {
    const Tensor mean = ops::mean(ops::square(x), {-1}, true);
    return {ops::mul(x, ops::rsqrt(ops::add_scalar(mean, eps_)))};
  }
  const Tensor& weight = parameters()[0].second->use();
  return {ops::rms_norm(x, offset_ ? ops::add_scalar(weight, 1) : weight, eps_)};
}

LayerNorm::LayerNorm(std::int64_t dim, double eps, bool bias, DType dtype, bool weight)
    : eps_(eps) {
  if (weight) {
    add_parameter("weight", std::make_shared<Parameter>(
                                Dims{dim}, dtype, Initialization{Initialization::Kind::ones, 0}));
  }
  if (weight && bias) {
    add_parameter("bias", std::make_shared<Parameter>(Dims{dim}, dtype, Initialization{}));
  }
}

std::string_view LayerNorm::kind() const { return "LayerNorm"; }
std::vector<std::string> LayerNorm::input_names() const { return {"input"}; }

Tensors LayerNorm::forward(const Tensors& inputs) {
  const Tensor weight = parameters().empty() ? Tensor() : parameters()[0].second->use();
  return {ops::layer_norm(input(inputs, 0), weight, bias_of(*this), eps_)};
}

HeadNorms::HeadNorms(std::int64_t heads, std::int64_t head_dim, const NormOptions& options,
                     DType dtype) {
  if (options.bias || options.offset) {
    fail({.thing = "HeadNorms", .wrong = "norms of heads have neither a bias nor an offset"});
  }
  NormOptions plain = options;
  plain.weight = false;
  plain_ = attach("plain", make_norm(head_dim, plain, dtype));
  const Initialization ones{Initialization::Kind::ones, 0};
  add_parameter("weight", std::make_shared<Parameter>(Dims{heads, head_dim}, dtype, ones));
  attach<LayerSplits>().declared = [this] {
    return std::vector<LayerSplit>{{.name = "columns",
                                    .parameters = {{parameter("weight"), Shard(0)}},
                                    .inputs = {Shard(-2)},
                                    .output = Shard(-2)}};
  };
}

std::string_view HeadNorms::kind() const { return "HeadNorms"; }
std::vector<std::string> HeadNorms::input_names() const { return {"hidden_states"}; }

Tensors HeadNorms::forward(const Tensors& inputs) {
  return {ops::mul((*plain_)(input(inputs, 0)), parameters()[0].second->use())};
}

Gelu::Gelu(bool tanh_form) : tanh_form_(tanh_form) {}

std::string_view Gelu::kind() const { return "Gelu"; }
std::vector<std::string> Gelu::input_names() const { return {"input"}; }

Tensors Gelu::forward(const Tensors& inputs) { return {ops::gelu(input(inputs, 0), tanh_form_)}; }

Conv2d::Conv2d(std::int64_t in, std::int64_t out, const Dims& kernel,
               const ops::Convolution& settings, bool bias, double standard_deviation, DType dtype)
    : settings_(settings) {
  const std::int64_t groups = settings.groups;
  if (groups < 1 || in % groups != 0 || out % groups != 0 || kernel.size() != 2) {
    fail({.thing = "Conv2d",
          .wrong = "the sizes do not fit",
          .expected = "a kernel of two sizes and channels that the groups divide",
          .got = fmt::format("{} and {} channels, {} groups, kernel {}", in, out, groups,
                             to_string(kernel))});
  }
  add_parameter("weight",
                normal({out, in / groups, kernel[0], kernel[1]}, dtype, standard_deviation));
  if (bias) {
    add_parameter("bias", std::make_shared<Parameter>(Dims{out}, dtype, Initialization{}));
  }
  if (groups == 1) {
    attach<LayerSplits>().declared = [this] { return std::vector{by_columns(*this, Shard(1))}; };
  }
}

std::string_view Conv2d::kind() const { return "Conv2d"; }
std::vector<std::string> Conv2d::input_names() const { return {"input"}; }

Tensors Conv2d::forward(const Tensors& inputs) {
  return {ops::conv2d(input(inputs, 0), parameters()[0].second->use(), bias_of(*this), settings_)};
}

Dropout::Dropout(double p) : p_(p) {}

std::string_view Dropout::kind() const { return "Dropout"; }
std::vector<std::string> Dropout::input_names() const { return {"input"}; }

Tensors Dropout::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);
  if (!is_training() || p_ == 0) {
    return inputs;
  }
  return {ops::dropout(x, p_, by_batch_row("dropout"))};
}

CrossEntropyLoss::CrossEntropyLoss(std::int64_t ignore_index) : ignore_index_(ignore_index) {
  LayerSplits& splits = attach<LayerSplits>();
  splits.declared = [] {
    return std::vector<LayerSplit>{
        {.name = "classes", .inputs = {Shard(-1), Replicate()}, .output = Replicate()}};
  };
  splits.use = [this](std::string_view) { loss_parallel_ = true; };
}

std::string_view CrossEntropyLoss::kind() const { return "CrossEntropyLoss"; }
std::vector<std::string> CrossEntropyLoss::input_names() const { return {"input", "target"}; }

Tensors CrossEntropyLoss::forward(const Tensors& inputs) {
  return {ops::cross_entropy(input(inputs, 0), input(inputs, 1),
                             {.reduction = ops::Reduction::sum,
                              .ignore_index = ignore_index_,
                              .loss_parallel = loss_parallel_})};
}

Tensor CrossEntropyLoss::rows(const Tensor& input, const Tensor& target) {
  return call({input, target}, [this](const Tensors& inputs) {
    return Tensors{ops::cross_entropy_rows(inputs[0], inputs[1], ignore_index_, loss_parallel_)};
  })[0];
}

}  // namespace tessera::nn
