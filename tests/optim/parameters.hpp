// Parameters and gradients for the tests of optimizers.
#pragma once
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace optim_test {

inline tessera::nn::ParameterPointer parameter(const std::string& name,
                                               const tessera::Dims& shape) {
  using tessera::DType;
  auto made =
      std::make_shared<tessera::nn::Parameter>(shape, DType::f64, tessera::nn::Initialization{});
  made->name = name;
  made->value = tessera::empty(shape, DType::f64);
  for (std::int64_t i = 0; i < made->value.numel(); ++i) {
    made->value.data<double>()[i] = std::sin(1 + static_cast<double>(i));
  }
  made->value.set_requires_grad();
  return made;
}

inline void set_gradients(const std::vector<tessera::nn::ParameterPointer>& parameters, int step) {
  for (const tessera::nn::ParameterPointer& p : parameters) {
    tessera::Tensor gradient = tessera::empty(p->value.shape(), tessera::DType::f64);
    for (std::int64_t i = 0; i < gradient.numel(); ++i) {
      gradient.data<double>()[i] = std::cos(static_cast<double>(3 * step + i));
    }
    p->value.grad() = gradient;
  }
}

}  // namespace optim_test
