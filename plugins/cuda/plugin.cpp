// The device "cuda": GPUs of NVIDIA.
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "library.hpp"

import tessera.base;
import tessera.plugin;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "kernels.hpp"

namespace {

using namespace tessera;

/// Operators whose element function is one of rows, which need kernels of their own.
bool is_of_rows(std::string_view name) {
  return name.starts_with("softmax") || name.starts_with("log_softmax") ||
         name.starts_with("rms_norm") || name.starts_with("layer_norm");
}

Kernel kernel_for(const Op& op) {
  static const cuda::KernelTable table = [] {
    cuda::KernelTable all;
    cuda::add_copies(all);
    cuda::add_functions(all);
    return all;
  }();
  const auto found = table.find(op.name);
  if (found != table.end()) {
    return found->second;
  }
  return is_of_rows(op.name) ? nullptr : cuda::kernel_of_elements(op);
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
          .kernel_of = kernel_for};
}

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<DevicePlugin>("cuda", offer);
}
