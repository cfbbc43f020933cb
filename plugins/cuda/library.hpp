// CUDA's driver library, opened at the first use.
#pragma once
#include <string_view>

#include "driver_api.hpp"

namespace tessera::cuda {

/// The library's functions, after cuInit. Errors: no library, one that is too old, no device.
const DriverApi& driver_api();

/// Raises an error unless the result is success: "cuda: cuMemAlloc fails: CUDA_ERROR_...: text". It
/// says so where the process cannot use the device any more.
void check(Result result, std::string_view call);

}  // namespace tessera::cuda
