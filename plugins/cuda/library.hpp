// CUDA's driver library, opened at the first use.
#pragma once
#include <string_view>

#include "driver_api.hpp"
#include "watched_call.hpp"

namespace tessera::cuda {

/// Sets variables of the environment that the driver reads in cuInit, where the user has not: all
/// kernels are loaded with their modules (CUDA_MODULE_LOADING), and streams have connections of
/// their own (CUDA_DEVICE_MAX_CONNECTIONS). Changes the environment: call it when the plugin is
/// loaded, before there are ranks.
void set_driver_defaults();

/// The library's functions, after cuInit, under the watch of whoever opens a device first. Errors:
/// no library, one that is too old, no device.
const DriverApi& driver_api(const CallWatch& watch);
/// The same, once a device is open.
const DriverApi& driver_api();

/// Raises an error unless the result is success: "cuda: cuMemAlloc fails: CUDA_ERROR_...: text". It
/// says so where the process cannot use the device any more.
void check(Result result, std::string_view call);

}  // namespace tessera::cuda
