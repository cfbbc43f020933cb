module;
#include <cstdint>
#include <memory>
#include <string_view>
module tessera.nn;

import tessera.base;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {
namespace {

ParameterPointer normal(const Dims& shape, DType dtype, double deviation) {
  return std::make_shared<Parameter>(shape, dtype,
                                     Initialization{Initialization::Kind::normal, deviation});
}

}  // namespace

Linear::Linear(std::int64_t in, std::int64_t out, bool bias, double deviation, DType dtype) {
  add_parameter("weight", normal({out, in}, dtype, deviation));
  if (bias) {
    add_parameter("bias", std::make_shared<Parameter>(Dims{out}, dtype, Initialization{}));
  }
}

std::string_view Linear::kind() const { return "Linear"; }

Tensors Linear::forward(const Tensors& inputs) {
  const bool bias = parameters().size() > 1;
  return {ops::linear(inputs[0], parameters()[0].second->use(),
                      bias ? parameters()[1].second->use() : Tensor())};
}

Embedding::Embedding(std::int64_t count, std::int64_t dim, double deviation, DType dtype) {
  add_parameter("weight", normal({count, dim}, dtype, deviation));
}

std::string_view Embedding::kind() const { return "Embedding"; }

Tensors Embedding::forward(const Tensors& inputs) {
  return {ops::embedding(parameters()[0].second->use(), inputs[0])};
}

RMSNorm::RMSNorm(std::int64_t dim, double eps, DType dtype) : eps_(eps) {
  add_parameter("weight", std::make_shared<Parameter>(
                              Dims{dim}, dtype, Initialization{Initialization::Kind::ones, 0}));
}

std::string_view RMSNorm::kind() const { return "RMSNorm"; }

Tensors RMSNorm::forward(const Tensors& inputs) {
  return {ops::rms_norm(inputs[0], parameters()[0].second->use(), eps_)};
}

Dropout::Dropout(double p) : p_(p) {}

std::string_view Dropout::kind() const { return "Dropout"; }

Tensors Dropout::forward(const Tensors& inputs) {
  if (!is_training() || p_ == 0) {
    return inputs;
  }
  return {ops::dropout(inputs[0], p_, random_stream("dropout"))};
}

}  // namespace tessera::nn
