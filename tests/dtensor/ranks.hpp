// Ranks that are threads. Catch's macros are for one thread: a rank throws instead, and the error
// that run_threads passes on fails the test.
#pragma once

#include <string>
#include <vector>

#include "errors.hpp"

namespace on_ranks {

using tessera::DeviceMesh;
using tessera::Tensor;

inline void check(bool holds, const std::string& what) {
  if (!holds) {
    tessera::fail("not so: " + what);
  }
}

/// Calls f() on `ranks` ranks at once.
template <class F>
void run(int ranks, F f) {
  tessera::collective::LaunchOptions options;
  options.timeout_seconds = 30;
  options.print_error = false;
  tessera::collective::run_threads(ranks, [&](tessera::collective::World&) { f(); }, options);
}

using tessera::testing::contains;
using tessera::testing::error_of;

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

}  // namespace on_ranks
