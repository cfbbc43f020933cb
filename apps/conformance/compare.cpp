module;
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;

namespace tessera::conformance {

double largest_difference(const Tensor& a, const Tensor& b) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) {
    return infinity;
  }
  const std::vector<double> x = to_doubles(a);
  const std::vector<double> y = to_doubles(b);
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) {
      continue;
    }
    const double difference = std::abs(x[i] - y[i]) / (1 + std::abs(y[i]));
    largest = std::isnan(difference) ? infinity : std::max(largest, difference);
  }
  return largest;
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-9;
    case DType::f32:
      return 1e-5;
    case DType::bf16:
      return 1.6e-2;
    case DType::f16:
      return 2e-3;
    default:
      return 0;
  }
}

double epsilon(DType dtype) {
  static const std::map<DType, double> epsilons = {
      {DType::f64, 0x1p-52}, {DType::f32, 0x1p-23}, {DType::f16, 0x1p-10}, {DType::bf16, 0x1p-7}};
  const auto found = epsilons.find(dtype);
  return found == epsilons.end() ? 0 : found->second;
}

Tensor numbers(const Dims& shape, double shift) {
  const Tensor x = empty(shape, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = 1.5 + std::sin(0.7 * static_cast<double>(i) + shift);
  }
  return x;
}

Tensor copy_of(const Tensor& x) {
  const NoGrad constant;
  return x ? ops::clone(x) : x;
}

std::vector<Tensor> copies_of(std::span<const Tensor> tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& x : tensors) {
    copies.push_back(copy_of(x));
  }
  return copies;
}

Tensor spaced(const Tensor& x) {
  const NoGrad constant;
  Dims strides = contiguous_strides(x.shape());
  for (std::int64_t& stride : strides) {
    stride *= 2;
  }
  const Tensor moved = alias(zeros({2 * x.numel() + 3}, x.dtype()), x.shape(), strides, 3);
  ops::copy_(moved, x);
  return moved;
}

}  // namespace tessera::conformance
