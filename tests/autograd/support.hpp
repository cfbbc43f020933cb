// What these tests share. Include it last, behind the imports of tessera.base, tensor and autograd.
#pragma once
#include <initializer_list>
#include <string>
#include <vector>

#include "errors.hpp"

namespace on_graph {

using tessera::Tensor;
using tessera::testing::contains;
using tessera::testing::error_of;

/// A leaf that requires a gradient.
inline Tensor leaf_of(std::initializer_list<double> values, const tessera::Dims& shape) {
  return tessera::from_values<double>(values, shape).set_requires_grad();
}
inline Tensor leaf(const tessera::Dims& shape, double value) {
  return tessera::full(shape, value, tessera::DType::f64).set_requires_grad();
}

inline std::vector<double> repeated(std::size_t count, double value) {
  return std::vector<double>(count, value);
}

}  // namespace on_graph
