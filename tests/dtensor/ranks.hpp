// Tensors on ranks: their values, and the parts of a layout. Include it after the imports.
#pragma once

#include <string>
#include <vector>

#include "errors.hpp"
#include "on_ranks.hpp"

namespace dtensor_test {

using tessera::DeviceMesh;
using tessera::Tensor;

using tessera::testing::check;
using tessera::testing::contains;
using tessera::testing::error_of;
using tessera::testing::on_ranks;

/// 0, 1, 2, ... in f64.
inline Tensor numbered(const tessera::Dims& shape, double first = 0) {
  const Tensor x = tessera::empty(shape, tessera::DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = first + static_cast<double>(i);
  }
  return x;
}

inline std::vector<double> values(const Tensor& x) {
  return tessera::to_doubles(tessera::local_of(x));
}

/// The values of a whole tensor that this rank holds in a layout.
inline std::vector<double> part_of(const Tensor& whole, const tessera::Layout& layout) {
  const std::vector<double> all = tessera::to_doubles(whole);
  std::vector<double> mine;
  tessera::for_each_run(whole.shape(),
                        tessera::local_part(whole.shape(), layout, tessera::current_rank()),
                        [&](std::int64_t first, std::int64_t count) {
                          for (std::int64_t i = 0; i < count; ++i) {
                            mine.push_back(all[static_cast<std::size_t>(first + i)]);
                          }
                        });
  return mine;
}

}  // namespace dtensor_test
