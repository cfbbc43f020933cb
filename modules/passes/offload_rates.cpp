// Costs here of computing and of copying into other memory.
module;
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
module tessera.passes;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.execute;
import :recompute;

namespace tessera::graph {
namespace {

/// Seconds of the fastest of three, because others use the machine too.
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

/// Rates of copies of x. Each is written twice, as in every step: what is written while the first
/// values are still on their way to a disk waits for them, and that is what a step would do.
OffloadRates rates_of(MemoryPlace& memory, const Tensor& x) {
  std::array<Tensor, 4> copies;
  for (Tensor& copy : copies) {
    copy = memory.allocate(x.shape(), x.dtype());
  }
  const auto each = [&](const auto& body) {
    const auto begin = std::chrono::steady_clock::now();
    for (const Tensor& copy : copies) {
      body(copy);
      memory.put_away(copy);
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    return static_cast<double>(x.numel()) * static_cast<double>(size_of(x.dtype())) *
           static_cast<double>(copies.size()) / std::max(taken.count(), 1e-9);
  };
  const auto store = [&](const Tensor& copy) { ops::copy_(copy, x); };
  each(store);
  const double stored = each(store);
  const double fetched = each([&](const Tensor& copy) {
    memory.fetch(copy);
    ops::copy_(x, copy);
  });
  return {.stored = rounded(stored), .fetched = rounded(fetched)};
}

}  // namespace

FitOptions measured_rates(MemoryPlace* memory) {
  const NoGrad no_grad;
  constexpr std::int64_t side = 384;
  constexpr std::int64_t count = std::int64_t{1} << 20;
  const auto bytes = static_cast<double>(count * 4);
  const Tensor a = full({side, side}, 1);
  const Tensor x = full({count}, 1);
  FitOptions rates;
  rates.computing.flops = rounded(2.0 * side * side * side / seconds_of([&] { ops::mm(a, a); }));
  rates.computing.bytes = rounded(2 * bytes / seconds_of([&] { ops::neg(x); }));
  if (memory != nullptr) {
    rates.offloading = rates_of(*memory, x);
  }
  return rates;
}

}  // namespace tessera::graph
