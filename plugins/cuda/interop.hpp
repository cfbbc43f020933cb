// What other plugins may use of a GPU besides DeviceDriver. Include it after the imports of
// tessera.base and tessera.device.
#pragma once
#include <cstddef>
#include <functional>
#include <string>

#include "driver_api.hpp"

namespace tessera::cuda {

/// The driver of a device "cuda" is one of these: dynamic_cast<Interop*>(&driver_of(device)).
class Interop {
 public:
  Interop() = default;
  Interop(const Interop&) = delete;
  Interop& operator=(const Interop&) = delete;
  virtual ~Interop() = default;

  /// Makes the device's context that of the calling thread.
  virtual void make_current() const = 0;
  virtual StreamHandle handle_of(DeviceDriver::Queue queue) const = 0;
  /// Queues a kernel of the plugin's. `structure`: its one parameter. Errors: no such kernel.
  virtual void launch_kernel(DeviceDriver::Queue queue, const std::string& name, unsigned blocks,
                             unsigned threads, const void* structure, std::size_t bytes) = 0;
  /// Makes a call that may block until the device is idle, as one that takes or frees memory, while
  /// the calling thread looks at the other ranks (watched_call.hpp). The call holds what it uses.
  virtual Result unblocked(std::function<Result()> call) const = 0;
};

}  // namespace tessera::cuda
