// What other plugins may use of a GPU besides DeviceDriver. Include it after the imports of
// tessera.base and tessera.device.
#pragma once
#include <cstddef>
#include <string>

#include "driver_api.hpp"
#include "watched_call.hpp"

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
  /// For calls that may block, with the device's context.
  virtual const CallWatch& watch() const = 0;
};

}  // namespace tessera::cuda
