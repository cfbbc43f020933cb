// CUDA's driver library, opened at the first use.
#pragma once
#include <string_view>

#include "driver_api.hpp"

namespace tessera::cuda {

/// The library's functions, after cuInit. Errors: no library, one that is too old, no device.
const DriverApi& driver_api();

/// Raises an error unless the result is success: "cuda: cuMemAlloc: CUDA_ERROR_...: text".
void check(Result result, std::string_view call);

/// How many devices there are, without opening one, so that processes may still be forked: by NVML,
/// else by the driver's files, limited by CUDA_VISIBLE_DEVICES.
int count_devices();

}  // namespace tessera::cuda
