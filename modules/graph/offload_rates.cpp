// What it costs here to compute and to copy into other memory.
module;
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
module tessera.graph;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.record;
import :recompute;

namespace tessera::graph {
namespace {

/// Of the fastest of three, because others use the machine too.
double seconds_of(const std::function<void()>& body) {
  double least = 1e9;
  for (int i = 0; i < 3; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    least = std::min(least, std::max(taken.count(), 1e-9));
  }
  return least;
}

/// So that small differences between two runs decide nothing.
double rounded(double rate) { return std::exp2(std::round(std::log2(rate))); }

}  // namespace

FitOptions measured_rates(OtherMemory* memory) {
  const NoGrad no_grad;
  constexpr std::int64_t side = 384;
  constexpr std::int64_t count = std::int64_t{4} << 20;
  const auto bytes = static_cast<double>(count * 4);
  const Tensor a = full({side, side}, 1);
  const Tensor x = full({count}, 1);
  FitOptions rates;
  rates.computing.flops = rounded(2.0 * side * side * side / seconds_of([&] { ops::mm(a, a); }));
  rates.computing.bytes = rounded(2 * bytes / seconds_of([&] { ops::neg(x); }));
  if (memory != nullptr) {
    const Tensor y = memory->allocate(x.shape(), x.dtype());
    const double stored = seconds_of([&] {
      ops::copy_(y, x);
      memory->put_away(y);
    });
    const double fetched = seconds_of([&] {
      memory->request(y);
      ops::copy_(x, y);
      memory->put_away(y);
    });
    rates.offloading =
        OffloadRates{.stored = rounded(bytes / stored), .fetched = rounded(bytes / fetched)};
  }
  return rates;
}

}  // namespace tessera::graph
