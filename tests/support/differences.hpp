// Include it last, behind the import of tessera.tensor.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace tessera::testing {

/// Of two tensors' elements; infinite where shapes differ or an element is no finite number.
inline double largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = to_doubles(a);
  const std::vector<double> y = to_doubles(b);
  double largest = a.shape() == b.shape() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    const double apart = std::abs(x[i] - y[i]);
    largest =
        std::isfinite(apart) ? std::max(largest, apart) : std::numeric_limits<double>::infinity();
  }
  return largest;
}

}  // namespace tessera::testing
