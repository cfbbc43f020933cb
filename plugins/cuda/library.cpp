#include "library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "find_function.hpp"

import tessera.base;

namespace tessera::cuda {
namespace {

constexpr int oldest_driver = 12080;  // 12.8

[[noreturn]] void refuse(std::string wrong, std::string advice) {
  fail_input({.thing = "device 'cuda'", .wrong = std::move(wrong), .advice = std::move(advice)});
}

DriverApi open_library() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    refuse(fmt::format("the driver's library cannot be opened: {}", dlerror()),
           "install NVIDIA's driver (version 570 or later)");
  }
  DriverApi api = {};
  each_function(api, [&](auto& function, const char* name) {
    if (!find_function(library, name, function)) {
      refuse(fmt::format("libcuda.so.1 has no function {}", name),
             "install a newer driver of NVIDIA's (version 570 or later)");
    }
  });
  return api;
}

/// Whether every later call fails too, until the process ends: a kernel has done what it must not,
/// or the device is lost.
bool stays(Result result) {
  switch (result) {
    case Result::ecc_uncorrectable:
    case Result::nvlink_uncorrectable:
    case Result::illegal_address:
    case Result::launch_timeout:
    case Result::hardware_stack_error:
    case Result::illegal_instruction:
    case Result::misaligned_address:
    case Result::invalid_address_space:
    case Result::invalid_pc:
    case Result::launch_failed:
    case Result::unknown:
      return true;
    default:
      return false;
  }
}

}  // namespace

void set_driver_defaults() {
  // A kernel that is loaded when it is first launched may wait for the whole device, which may wait
  // for another rank; and streams that share a connection wait for each other.
  constexpr int keep = 0;
  setenv("CUDA_MODULE_LOADING", "EAGER", keep);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", keep);
}

const DriverApi& driver_api(const CallWatch& watch) {
  static const DriverApi api = [&] {
    const DriverApi opened = open_library();
    const Result initialised = watch.call(
        "cuInit", [init = opened.init](const WatchedThread& watched) { return init(watched, 0); });
    if (initialised == Result::no_device) {
      refuse("there is no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES");
    }
    int version = 0;
    opened.driver_get_version(&version);
    if (version < oldest_driver) {
      refuse(fmt::format("the driver is too old (expected CUDA 12.8 or later, got {}.{})",
                         version / 1000, version % 1000 / 10),
             "install a newer driver of NVIDIA's (version 570 or later)");
    }
    if (initialised != Result::success) {
      const char* text = nullptr;
      opened.get_error_string(initialised, &text);
      refuse(fmt::format("cuInit fails: {}", text == nullptr ? "unknown error" : text),
             "check nvidia-smi");
    }
    return opened;
  }();
  return api;
}

const DriverApi& driver_api() {
  static const DriverApi& api = driver_api(CallWatch("device 'cuda'"));
  return api;
}

void check(Result result, std::string_view call) {
  if (result == Result::success) [[likely]] {
    return;
  }
  const char* name = nullptr;
  const char* text = nullptr;
  driver_api().get_error_name(result, &name);
  driver_api().get_error_string(result, &text);
  fail({.thing = "cuda",
        .wrong = fmt::format("{} fails: {}: {}", call, name == nullptr ? "unknown error" : name,
                             text == nullptr ? "" : text),
        .advice = stays(result) ? "this process cannot use its GPU any more; start the program "
                                  "again, and look at nvidia-smi if that fails too"
                                : ""});
}

}  // namespace tessera::cuda
