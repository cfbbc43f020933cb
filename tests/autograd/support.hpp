// What these tests share. Include it last, behind the imports of tessera.base, tensor and autograd.
#pragma once
#include <initializer_list>
#include <string>
#include <vector>

namespace on_graph {

using tessera::Tensor;

/// A leaf that requires a gradient.
inline Tensor leaf_of(std::initializer_list<double> values, const tessera::Dims& shape) {
  return tessera::from_values<double>(values, shape).set_requires_grad();
}
inline Tensor leaf(const tessera::Dims& shape, double value) {
  return tessera::full(shape, value, tessera::DType::f64).set_requires_grad();
}

/// The text of the Error that f() throws; empty for none.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const tessera::Error& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::vector<double> repeated(std::size_t count, double value) {
  return std::vector<double>(count, value);
}

}  // namespace on_graph
