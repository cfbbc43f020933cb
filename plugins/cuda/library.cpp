#include "library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

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

/// A number of CUDA_VISIBLE_DEVICES that begins like this hides all that follow.
int visible_of(int count, std::string_view listed) {
  int visible = 0;
  while (!listed.empty()) {
    const auto comma = listed.find(',');
    const std::string_view entry = listed.substr(0, comma);
    int number = 0;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
    const bool is_number = error == std::errc() && end == entry.data() + entry.size();
    const bool is_name = entry.starts_with("GPU-") || entry.starts_with("MIG-");
    if (!is_name && !(is_number && number >= 0 && number < count)) {
      break;
    }
    ++visible;
    listed = comma == std::string_view::npos ? std::string_view() : listed.substr(comma + 1);
  }
  return visible;
}

/// -1: there is no NVML.
int count_by_nvml() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return -1;
  }
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto shutdown = reinterpret_cast<int (*)()>(dlsym(library, "nvmlShutdown"));
  const auto get = reinterpret_cast<int (*)(unsigned*)>(dlsym(library, "nvmlDeviceGetCount_v2"));
  unsigned count = 0;
  if (init == nullptr || shutdown == nullptr || get == nullptr || init() != 0) {
    return -1;
  }
  const bool counted = get(&count) == 0;
  shutdown();
  return counted ? static_cast<int>(count) : -1;
}

int count_by_files() {
  std::error_code error;
  const std::filesystem::directory_iterator folders("/proc/driver/nvidia/gpus", error);
  return error ? 0 : static_cast<int>(std::distance(begin(folders), end(folders)));
}

}  // namespace

const DriverApi& driver_api() {
  static const DriverApi api = [] {
    const DriverApi opened = open_library();
    const Result initialised = opened.init(0);
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
                             text == nullptr ? "" : text)});
}

int count_devices() {
  const int by_nvml = count_by_nvml();
  const int count = by_nvml >= 0 ? by_nvml : count_by_files();
  const char* listed = std::getenv("CUDA_VISIBLE_DEVICES");
  return listed == nullptr ? count : visible_of(count, listed);
}

}  // namespace tessera::cuda
