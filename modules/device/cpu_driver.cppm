module tessera.device:cpu_driver;

import tessera.base;
import :driver;

// The CPU as a device. Its default queue is the calling thread: work runs when it is queued. Each
// further queue is a thread of its own.
namespace tessera {

std::unique_ptr<DeviceDriver> make_cpu_driver();

}  // namespace tessera
