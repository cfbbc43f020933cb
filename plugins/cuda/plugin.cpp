// The device "cuda": GPUs of NVIDIA.
#include <fmt/format.h>

#include <cstddef>
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

#include "blas.hpp"
#include "dnn.hpp"
#include "gpus.hpp"
#include "kernels.hpp"
#include "nvrtc.hpp"

namespace {

using namespace tessera;

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
    cuda::add_losses(all);
    cuda::add_gates(all);
    cuda::add_sorting(all);
    cuda::add_selecting(all);
    cuda::add_groups(all);
    cuda::add_codes(all);
    cuda::add_scaled_products(all);
    cuda::add_updates(all);
    cuda::add_random(all);
    return all;
  }();
  const auto found = table.find(op.name);
  if (found != table.end()) {
    return found->second;
  }
  return {.run = cuda::kernel_of_elements(op)};
}

/// As cuBLAS and cuDNN write a version: 10000 major + 100 minor + patch; 0: "".
std::string version_in_words(std::size_t version) {
  return version == 0
             ? ""
             : fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

std::vector<DeviceLibrary> libraries() {
  return {{.name = "cuBLASLt",
           .version = version_in_words(cuda::Blas::version()),
           .advice = "products are computed by Tessera's own kernels, which are slower; install "
                     "cuBLAS of CUDA 12.8 or later (pip install nvidia-cublas)"},
          {.name = "cuDNN",
           .version = version_in_words(cuda::Dnn::version()),
           .advice = "attention is computed by Tessera's own kernels; install cuDNN 9.16 or later "
                     "(pip install nvidia-cudnn-cu13)"},
          {.name = "NVRTC",
           .version = cuda::compiler_version(),
           .advice = "planned steps call each elementwise operator alone; install NVRTC of CUDA "
                     "12.8 or later (pip install nvidia-cuda-nvrtc)"}};
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
          .compile = cuda::compile_loops,
          .libraries = libraries};
}

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  tessera::cuda::set_driver_defaults();
  registrar.add<DevicePlugin>("cuda", offer);
}
