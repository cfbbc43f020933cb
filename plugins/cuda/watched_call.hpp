// Calls of the driver that may block. Include it after the imports of tessera.base and
// tessera.device.
#pragma once
#include <functional>

#include "driver_api.hpp"

namespace tessera::cuda {

/// Makes a call of the driver that may block until the device is idle, and so until another rank
/// does something. It runs on a thread of its own, with this context, while the calling thread
/// looks at the other ranks as in every wait for the device. Where a look raises an error, the call
/// may still run: it holds whatever it uses.
Result watched_call(Device device, Context context, std::function<Result()> call);

/// For CudaDriver::synchronize(), through which a watched call looks: waits for the calling
/// thread's call, if there is one.
bool wait_for_watched_call(const WaitCheck& still_runs);

}  // namespace tessera::cuda
