// The adversarial device (adversary_core.cpp) for its two plugins. Include it after
// `import tessera.tensor;`.
#pragma once
#include <functional>

namespace adversary {

tessera::DeviceOffer offer();
/// Where a kernel finds memory of the device.
void* kernel_address(const void* data);
/// Queues a function that is called again and again until it returns true. Between its calls other
/// queues of the device run.
void launch_steps(tessera::Device device, tessera::DeviceDriver::Queue queue,
                  std::function<bool()> step);

}  // namespace adversary
