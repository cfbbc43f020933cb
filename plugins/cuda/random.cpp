// Random fillings: uniform numbers and masks on the device, with the CPU's bits; others by the
// host.
#include "kernels/random.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "kernels.hpp"

namespace tessera::cuda {
namespace {

struct UniformArgs {
  Dynamic<double> low;
  Dynamic<double> high;
  Dynamic<RandomNumbers> numbers;
  SpecArgument whole{};
};
struct ProbabilityArgs {
  Dynamic<double> p;
  Dynamic<RandomNumbers> numbers;
  SpecArgument whole{};
};

/// The host fills memory of its own. What the device's memory had is not read.
void fill_on_host(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  if (x.numel() == 0 || !x.is_contiguous()) {
    kernel_on_host(call, out);
    return;
  }
  const std::size_t bytes = static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
  const Tensor filled =
      from_storage(Storage::allocate(bytes), x.shape(), x.strides(), 0, x.dtype());
  Tensor result = filled;
  const std::span<Tensor> results(&result, 1);
  const DeviceKernel kernel = kernel_of(call.op, DeviceType::cpu);
  const Call here{call.op, {&filled, 1}, call.attributes, {}};
  const std::size_t needed = kernel.workspace == nullptr ? 0 : kernel.workspace(here, results);
  std::vector<std::byte> workspace(needed);
  kernel.run({call.op, {&filled, 1}, call.attributes, workspace}, results);
  current_stream(x.device())
      .copy(x.device_address(), filled.raw_data(), bytes, CopyKind::to_device);
}

/// Whether the elements are those of a part of `whole`; where they are not, the host says why.
bool is_part(const Tensor& x, const SpecArgument& whole) {
  return !whole || local_shape(*whole) == x.shape();
}

RandomArguments arguments_of(const Tensor& x, const RandomNumbers& numbers,
                             const SpecArgument& whole) {
  RandomArguments a = {};
  a.elements = elements_of(x.shape(), {}, x);
  a.places = places_of(x.shape(), whole);
  a.key = functions::philox_key(numbers.seed, numbers.stream);
  a.offset = numbers.offset;
  a.run = numbers.run;
  a.stride = numbers.stride;
  return a;
}

void uniform(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  const auto settings = call.args<UniformArgs>();
  if (x.numel() == 0 || !is_floating(x.dtype()) || !is_part(x, settings.whole)) {
    kernel_on_host(call, out);
    return;
  }
  RandomArguments a = arguments_of(x, settings.numbers, settings.whole);
  a.low = static_cast<float>(settings.low);
  a.width = static_cast<float>(settings.high) - a.low;
  launch(x, "fill_uniform", blocks_for(x.numel(), random_per_thread), threads_per_block, a);
}

void bernoulli(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  const auto settings = call.args<ProbabilityArgs>();
  const double p = settings.p;
  if (x.numel() == 0 || !(p >= 0 && p <= 1) || !is_part(x, settings.whole)) {
    kernel_on_host(call, out);
    return;
  }
  RandomArguments a = arguments_of(x, settings.numbers, settings.whole);
  a.limit = static_cast<std::uint64_t>(std::ceil(p * 0x1p32));
  launch(x, "fill_truths", blocks_for(x.numel(), random_per_thread), threads_per_block, a);
}

}  // namespace

void add_random(KernelTable& table) {
  table["uniform_"] = {uniform};
  table["bernoulli_"] = {bernoulli};
  // Normal numbers begin a run and should have the CPU's bits, which its vectors' functions decide.
  for (const char* name : {"normal_", "randint_", "randperm_"}) {
    table[name] = {fill_on_host};
  }
}

}  // namespace tessera::cuda
