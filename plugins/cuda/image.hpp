// The kernels that nvcc has compiled, for cuModuleLoadData.
#pragma once
#include <span>

namespace tessera::cuda {

/// One for each source of kernels. A plugin that was built without nvcc has one that is not an
/// image: a GPU's driver refuses it, the emulator finds kernels by their names.
std::span<const void* const> kernel_images();

}  // namespace tessera::cuda
