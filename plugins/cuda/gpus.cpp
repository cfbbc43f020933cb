#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "find_function.hpp"

import tessera.base;
import tessera.device;

#include "gpus.hpp"
#include "watched_call.hpp"

namespace tessera::cuda {
namespace {

struct NvmlDeviceData;
using NvmlDevice = NvmlDeviceData*;
/// nvmlMemory_t, in bytes.
struct NvmlMemory {
  unsigned long long total = 0;
  unsigned long long free = 0;
  unsigned long long used = 0;
};

/// The library's functions, which return 0 where they succeed.
struct NvmlApi {
  Blocking<int()> init;
  Blocking<int()> shutdown;
  Blocking<int(unsigned* count)> count;
  Blocking<int(unsigned index, NvmlDevice* device)> by_index;
  Blocking<int(const char* name, NvmlDevice* device)> by_name;
  Blocking<int(NvmlDevice device, NvmlMemory* memory)> memory;
};

/// Calls use(the place of a function's pointer, its name in the library) for each function.
template <class Use>
void each_function(NvmlApi& api, Use use) {
  use(api.init, "nvmlInit_v2");
  use(api.shutdown, "nvmlShutdown");
  use(api.count, "nvmlDeviceGetCount_v2");
  use(api.by_index, "nvmlDeviceGetHandleByIndex_v2");
  use(api.by_name, "nvmlDeviceGetHandleByUUID");
  use(api.memory, "nvmlDeviceGetMemoryInfo");
}

/// What a process takes of a device besides its tensors: the driver's context, the kernels, and
/// those of CUDA's libraries. Its size depends on all of them; this is more than usual.
constexpr std::size_t reserved_bytes = std::size_t{1} << 30;

/// NVML's library, initialised as long as this lives.
class Nvml {
 public:
  explicit Nvml(const WatchedThread& watched)
      : watched_(watched), api_(open_functions<NvmlApi>({"libnvidia-ml.so.1"}).api) {
    if (api_ && api_->init(watched_) != 0) {
      api_.reset();
    }
  }
  ~Nvml() {
    if (api_) {
      api_->shutdown(watched_);
    }
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::optional<int> count() const {
    unsigned found = 0;
    return api_ && api_->count(watched_, &found) == 0 ? std::optional(static_cast<int>(found))
                                                      : std::nullopt;
  }
  /// What tensors of a new process can have. `device`: a number, or a name as CUDA_VISIBLE_DEVICES
  /// has it.
  std::optional<DeviceCapacity> memory(const std::string& device) const {
    NvmlDevice handle = nullptr;
    NvmlMemory found;
    const bool by_name = device.find('-') != std::string::npos;
    if (!api_ ||
        (by_name
             ? api_->by_name(watched_, device.c_str(), &handle)
             : api_->by_index(watched_, static_cast<unsigned>(std::stoul(device)), &handle)) != 0 ||
        api_->memory(watched_, handle, &found) != 0) {
      return std::nullopt;
    }
    const std::size_t free = found.free;
    return DeviceCapacity{.free = free - std::min(free, reserved_bytes), .total = found.total};
  }

 private:
  const WatchedThread& watched_;
  std::optional<NvmlApi> api_;  // none: the library cannot be used
};

int count_by_files() {
  std::error_code error;
  const std::filesystem::directory_iterator folders("/proc/driver/nvidia/gpus", error);
  return error ? 0 : static_cast<int>(std::distance(begin(folders), end(folders)));
}

/// The devices as CUDA numbers them, each by its number on the machine or by its name. An entry of
/// CUDA_VISIBLE_DEVICES that is neither hides all that follow.
std::vector<std::string> visible_devices(const Nvml& nvml) {
  const int count = nvml.count().value_or(count_by_files());
  const char* const variable = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<std::string> visible;
  if (variable == nullptr) {
    for (int i = 0; i < count; ++i) {
      visible.push_back(std::to_string(i));
    }
    return visible;
  }
  std::string_view listed = variable;
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
    visible.emplace_back(entry);
    listed = comma == std::string_view::npos ? std::string_view() : listed.substr(comma + 1);
  }
  return visible;
}

/// Devices are counted where there are no ranks yet.
CallWatch nvml_watch() { return CallWatch::without_ranks("device 'cuda'"); }

}  // namespace

int count_devices() {
  return nvml_watch().call("NVML", [](const WatchedThread& watched) {
    return static_cast<int>(visible_devices(Nvml(watched)).size());
  });
}

std::optional<DeviceCapacity> memory_of_device(int index) {
  return nvml_watch().call("NVML", [index](const WatchedThread& watched) {
    const Nvml nvml(watched);
    const std::vector<std::string> visible = visible_devices(nvml);
    const auto place = static_cast<std::size_t>(index);
    return place < visible.size() ? nvml.memory(visible[place]) : std::nullopt;
  });
}

}  // namespace tessera::cuda
