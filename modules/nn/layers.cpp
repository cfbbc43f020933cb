module;
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {
namespace {

ParameterPointer normal(const Dims& shape, DType dtype, double standard_deviation) {
  return std::make_shared<Parameter>(
      shape, dtype, Initialization{Initialization::Kind::normal, standard_deviation});
}

}  // namespace

Linear::Linear(std::int64_t in, std::int64_t out, bool bias, double standard_deviation,
               DType dtype) {
  add_parameter("weight", normal({out, in}, dtype, standard_deviation));
  if (bias) {
    add_parameter("bias", std::make_shared<Parameter>(Dims{out}, dtype, Initialization{}));
  }
}

std::string_view Linear::kind() const { return "Linear"; }
std::vector<std::string> Linear::input_names() const { return {"input"}; }

Tensors Linear::forward(const Tensors& inputs) {
  const bool bias = parameters().size() > 1;
  return {ops::linear(input(inputs, 0), parameters()[0].second->use(),
                      bias ? parameters()[1].second->use() : Tensor())};
}

Embedding::Embedding(std::int64_t count, std::int64_t dim, double standard_deviation, DType dtype) {
  add_parameter("weight", normal({count, dim}, dtype, standard_deviation));
}

std::string_view Embedding::kind() const { return "Embedding"; }
std::vector<std::string> Embedding::input_names() const { return {"input"}; }

Tensors Embedding::forward(const Tensors& inputs) {
  return {ops::embedding(parameters()[0].second->use(), input(inputs, 0))};
}

RMSNorm::RMSNorm(std::int64_t dim, double eps, DType dtype) : eps_(eps) {
  add_parameter("weight", std::make_shared<Parameter>(
                              Dims{dim}, dtype, Initialization{Initialization::Kind::ones, 0}));
}

std::string_view RMSNorm::kind() const { return "RMSNorm"; }
std::vector<std::string> RMSNorm::input_names() const { return {"hidden_states"}; }

Tensors RMSNorm::forward(const Tensors& inputs) {
  return {ops::rms_norm(input(inputs, 0), parameters()[0].second->use(), eps_)};
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

CrossEntropyLoss::CrossEntropyLoss(std::int64_t ignore_index) : ignore_index_(ignore_index) {}

std::string_view CrossEntropyLoss::kind() const { return "CrossEntropyLoss"; }
std::vector<std::string> CrossEntropyLoss::input_names() const { return {"input", "target"}; }

Tensors CrossEntropyLoss::forward(const Tensors& inputs) {
  return {ops::cross_entropy(input(inputs, 0), input(inputs, 1), ignore_index_, loss_parallel_)};
}

}  // namespace tessera::nn
