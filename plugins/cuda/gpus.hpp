// What is known of GPUs without a context, so that processes may still be forked. Include it after
// the import of tessera.device.
#pragma once
#include <optional>

namespace tessera::cuda {

/// How many devices there are: by NVML, else by the driver's files, limited by
/// CUDA_VISIBLE_DEVICES.
int count_devices();

/// By NVML; without it, or where it has no answer: unknown. Where a machine has different GPUs,
/// CUDA may number them in another order (CUDA_DEVICE_ORDER).
std::optional<DeviceCapacity> memory_of_device(int index);

}  // namespace tessera::cuda
