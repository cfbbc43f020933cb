module;
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/rates.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {

void set_threads(int count) { kernels::set_threads(std::max(1, count)); }
int threads() { return kernels::threads(); }

void in_pieces(std::int64_t count, std::int64_t grain,
               const std::function<void(std::int64_t first, std::int64_t last)>& body) {
  kernels::parallel_for(0, count, grain, body);
}

double measure_gemm(double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t extent = 768;
  const NoGrad no_grad;
  const Tensor a = full({extent, extent}, 0.5);
  const Tensor b = full({extent, extent}, 0.25);
  mm(a, b);  // the library makes its kernel
  double best = 0;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    mm(a, b);
    const double taken = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, 2.0 * extent * extent * extent / taken);
  } while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds);
  return best;
}

void compute(ComputeKind what, std::int64_t count) {
  switch (what) {
    case ComputeKind::exponentials:
      return kernels::compute_exponentials(count);
    case ComputeKind::random_words:
      return kernels::compute_random_words(count);
  }
}

}  // namespace tessera::ops
