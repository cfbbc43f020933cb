module;
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <charconv>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>
module tessera.tensor;

import tessera.base;
import tessera.device;
import tessera.plugin;

namespace tessera {
namespace {

using Compile = CompiledLoops (*)(Device device, const ElementLoops& loops);
std::array<std::atomic<Compile>, device_type_count> compilers;  // by kind

[[maybe_unused]] const bool declared = plugin::declare_kind<DevicePlugin>();

DeviceType load_kind(std::string_view name) {
  static std::mutex mutex;  // ranks that are threads call this at the same time
  const std::lock_guard lock(mutex);
  if (const std::optional<DeviceType> type = device_type(name)) {
    return *type;
  }
  const DeviceOffer offer = plugin::host().find<DevicePlugin>(name)();
  if (offer.kernel_of == nullptr) {
    fail({.thing = fmt::format("device '{}'", name),
          .wrong = "its plugin offers no kernels",
          .advice = "set DeviceOffer::kernel_of"});
  }
  const DeviceType type = register_device_kind({.name = std::string(name),
                                                .count = offer.count,
                                                .open = offer.open,
                                                .memory = offer.memory,
                                                .shared = offer.shared});
  register_kernels(type, offer.kernel_of);
  compilers.at(static_cast<std::size_t>(type)) = offer.compile;
  return type;
}

}  // namespace

DeviceLoops::~DeviceLoops() = default;

CompiledLoops compile_loops(Device device, const ElementLoops& loops) {
  const auto type = static_cast<std::size_t>(device.type);
  const Compile compile = type < compilers.size() ? compilers.at(type).load() : nullptr;
  return compile == nullptr ? CompiledLoops() : compile(device, loops);
}

Device find_device(std::string_view name) {
  const auto colon = name.find(':');
  const std::string_view number =
      colon == std::string_view::npos ? std::string_view("0") : name.substr(colon + 1);
  int index = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
  constexpr int most = 127;
  if (error != std::errc() || end != number.data() + number.size() || index < 0 || index > most) {
    fail_input({.thing = fmt::format("device '{}'", name),
                .wrong = "the number is wrong",
                .expected = fmt::format("0 to {}", most),
                .got = fmt::format("'{}'", number)});
  }
  const Device device{load_kind(name.substr(0, colon)), static_cast<std::int8_t>(index)};
  check_device(device);
  return device;
}

}  // namespace tessera
