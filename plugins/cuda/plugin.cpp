// The device "cuda": GPUs of NVIDIA.
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "library.hpp"

import tessera.base;
import tessera.plugin;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "gpus.hpp"
#include "kernels.hpp"

namespace {

using namespace tessera;

/// Operators that the host computes, and waits for: random fillings, which begin a run and should
/// have the CPU's bits.
void add_of_host(cuda::KernelTable& table) {
  for (const char* name : {"normal_", "uniform_", "randint_", "randperm_", "bernoulli_"}) {
    table[name] = {kernel_on_host};
  }
}

DeviceKernel kernel_for(const Op& op) {
  static const cuda::KernelTable table = [] {
    cuda::KernelTable all;
    cuda::add_copies(all);
    cuda::add_functions(all);
    cuda::add_norms(all);
    cuda::add_reductions(all);
    cuda::add_products(all);
    cuda::add_attention(all);
    cuda::add_indexing(all);
    cuda::add_sorting(all);
    cuda::add_selecting(all);
    cuda::add_groups(all);
    cuda::add_codes(all);
    cuda::add_scaled_products(all);
    cuda::add_updates(all);
    add_of_host(all);
    return all;
  }();
  const auto found = table.find(op.name);
  if (found != table.end()) {
    return found->second;
  }
  return {.run = cuda::kernel_of_elements(op)};
}

DeviceOffer offer() {
  const int count = cuda::count_devices();
  if (count == 0) {
    fail_input({.thing = "device 'cuda'",
                .wrong = "there is no GPU",
                .advice = "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the device 'cpu'"});
  }
  return {.count = count,
          .open = [](int index) { return std::make_unique<cuda::CudaDriver>(index); },
          .kernel_of = kernel_for,
          .memory = cuda::memory_of_device,
          .compile = cuda::compile_loops};
}

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<DevicePlugin>("cuda", offer);
}
