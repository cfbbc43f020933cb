module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.device;

import tessera.base;
import :cpu_driver;

namespace tessera {
namespace {

constexpr int most_devices = 64;  // of one kind

/// The kinds and their open devices; never destroyed, since tensors may outlive statics.
struct Kinds {
  std::mutex mutex;
  std::vector<DeviceKind> all;  // by number; 0 is the CPU
  std::array<std::array<std::atomic<DeviceDriver*>, most_devices>, device_type_count> open{};

  Kinds() {
    all.push_back({.name = "cpu", .open = [](int) { return make_cpu_driver(); }, .shared = true});
  }
};

Kinds& kinds() {
  static auto* instance = new Kinds;
  return *instance;
}

bool is_word(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

}  // namespace

DeviceDriver::~DeviceDriver() = default;

void* DeviceDriver::allocate_pinned(std::size_t bytes) {
  constexpr std::size_t alignment = 512;
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
void DeviceDriver::free_pinned(void* data, std::size_t) noexcept { std::free(data); }
bool DeviceDriver::has_graphs() const { return false; }
void DeviceDriver::begin_graph(Queue) { fail("device: it has no graphs; look at has_graphs()"); }
DeviceDriver::Graph DeviceDriver::end_graph(Queue) {
  fail("device: it has no graphs; look at has_graphs()");
}
void DeviceDriver::launch_graph(Queue, Graph) {
  fail("device: it has no graphs; look at has_graphs()");
}
void DeviceDriver::free_graph(Graph) noexcept {}
bool DeviceDriver::poll() { return false; }

bool poll_devices() {
  bool work_left = false;
  auto& kinds_open = kinds().open;
  for (std::size_t type = 1; type < kinds_open.size(); ++type) {  // the CPU moves on by itself
    for (const std::atomic<DeviceDriver*>& place : kinds_open[type]) {
      if (DeviceDriver* const driver = place.load(std::memory_order_acquire)) {
        work_left |= driver->poll();
      }
    }
  }
  return work_left;
}

DeviceType register_device_kind(DeviceKind kind) {
  Kinds& k = kinds();
  const std::lock_guard lock(k.mutex);
  if (!is_word(kind.name)) {
    fail({.thing = fmt::format("device '{}'", kind.name),
          .wrong = "the name is wrong",
          .expected = "letters, digits, '_' and '-'"});
  }
  const auto same = [&kind](const DeviceKind& other) { return other.name == kind.name; };
  if (kind.name == "meta" || std::ranges::any_of(k.all, same)) {
    fail({.thing = fmt::format("device '{}'", kind.name),
          .wrong = "a kind of this name exists already"});
  }
  if (k.all.size() == device_type_count) {
    fail({.thing = fmt::format("device '{}'", kind.name),
          .wrong = fmt::format("there are {} kinds of devices already, which is the most",
                               k.all.size())});
  }
  if (!kind.open || kind.count < 1) {
    fail({.thing = fmt::format("device '{}'", kind.name),
          .wrong = "the kind has no devices",
          .expected = "a function that opens one, and a count of at least 1",
          .got = fmt::format("{}", kind.count)});
  }
  kind.count = std::min(kind.count, most_devices);
  k.all.push_back(std::move(kind));
  return static_cast<DeviceType>(k.all.size() - 1);
}

std::optional<DeviceType> device_type(std::string_view name) {
  if (name == "meta") {
    return DeviceType::meta;
  }
  Kinds& k = kinds();
  const std::lock_guard lock(k.mutex);
  for (std::size_t i = 0; i < k.all.size(); ++i) {
    if (k.all[i].name == name) {
      return static_cast<DeviceType>(i);
    }
  }
  return std::nullopt;
}

std::vector<std::string> device_type_names() {
  Kinds& k = kinds();
  const std::lock_guard lock(k.mutex);
  std::vector<std::string> names{"cpu", "meta"};
  for (std::size_t i = 1; i < k.all.size(); ++i) {
    names.push_back(k.all[i].name);
  }
  return names;
}

std::string to_string(Device device) {
  if (device == cpu) {
    return "cpu";
  }
  if (device == meta) {
    return "meta";
  }
  Kinds& k = kinds();
  const std::lock_guard lock(k.mutex);
  const auto type = static_cast<std::size_t>(device.type);
  return fmt::format("{}:{}", type < k.all.size() ? k.all[type].name : "unknown", device.index);
}

int device_count(DeviceType type) {
  Kinds& k = kinds();
  const std::lock_guard lock(k.mutex);
  const auto place = static_cast<std::size_t>(type);
  return type == DeviceType::meta ? 1 : place < k.all.size() ? k.all[place].count : 0;
}

std::optional<DeviceCapacity> device_memory(Device device) {
  std::function<std::optional<DeviceCapacity>(int)> ask;
  {
    Kinds& k = kinds();
    const std::lock_guard lock(k.mutex);
    const auto place = static_cast<std::size_t>(device.type);
    if (device.type != DeviceType::meta && place < k.all.size()) {
      ask = k.all[place].memory;
    }
  }
  return ask ? ask(device.index) : std::nullopt;
}

Device device_for_rank(DeviceType type, int number, int ranks) {
  const int count = device_count(type);
  bool shared = type == DeviceType::meta;
  {
    Kinds& k = kinds();
    const std::lock_guard lock(k.mutex);
    const auto place = static_cast<std::size_t>(type);
    shared = shared || (place < k.all.size() && k.all[place].shared);
  }
  if (ranks > count && !shared) {
    const std::string name = device_type_names()[static_cast<std::size_t>(type) + 1];
    fail_input({.thing = fmt::format("device '{}'", name),
                .wrong = "there are more ranks than devices on this machine",
                .expected = fmt::format("at most {} ranks", count),
                .got = fmt::format("{}", ranks),
                .advice = fmt::format("start fewer ranks, or write '{}:0' for all to share one "
                                      "device",
                                      name)});
  }
  return {type, static_cast<std::int8_t>(number % count)};
}

void check_device(Device device) {
  if (device.type == DeviceType::meta && device.index == 0) {
    return;
  }
  const int count = device_count(device.type);
  if (device.index < 0 || device.index >= count) {
    fail_input(
        {.thing = fmt::format("device '{}'", to_string(device)),
         .wrong = fmt::format("there is no such device (there are {} of this kind)", count)});
  }
}

DeviceDriver& driver_of(Device device) {
  if (device.type == DeviceType::meta) {
    fail("device 'meta': it has no memory and runs nothing; use a device that does");
  }
  const auto type = static_cast<std::size_t>(device.type);
  const auto index = static_cast<std::size_t>(device.index);
  if (type >= device_type_count || device.index < 0 || index >= most_devices) {
    check_device(device);
  }
  std::atomic<DeviceDriver*>& place = kinds().open[type][index];
  if (DeviceDriver* driver = place.load(std::memory_order_acquire)) {
    return *driver;
  }
  check_device(device);
  static std::mutex opening;
  const std::lock_guard lock(opening);
  if (place.load(std::memory_order_acquire) == nullptr) {
    std::function<std::unique_ptr<DeviceDriver>(int)> open;
    {
      const std::lock_guard reading(kinds().mutex);
      open = kinds().all[type].open;
    }
    std::unique_ptr<DeviceDriver> driver = open(device.index);
    if (!driver) {
      fail({.thing = fmt::format("device '{}'", to_string(device)),
            .wrong = "its kind returned no driver"});
    }
    place.store(driver.release(), std::memory_order_release);
  }
  return *place.load(std::memory_order_acquire);
}

}  // namespace tessera
