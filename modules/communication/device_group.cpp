module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/reduce_ranks.h"
module tessera.communication;

import tessera.base;
import tessera.plugin;
import tessera.device;
import :device_group;

namespace tessera::collective {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<CollectivesPlugin>();

}  // namespace

DeviceCollectives device_collectives() {
  constexpr const char* variable = "TESSERA_DEVICE_COLLECTIVES";
  static constexpr std::array<std::string_view, 3> words = {"ordered", "own_order", "host"};
  const char* const value = std::getenv(variable);
  if (value == nullptr) {
    return DeviceCollectives::ordered;
  }
  const auto found = std::ranges::find(words, value);
  if (found == words.end()) {
    fail_input({.thing = variable,
                .wrong = "it is not a way in which collectives of devices move",
                .expected = "ordered, own_order or host",
                .got = value});
  }
  return static_cast<DeviceCollectives>(found - words.begin());
}

DeviceGroup::~DeviceGroup() = default;
bool DeviceGroup::all_gather(Queue, const void*, void*, std::size_t) { return false; }
bool DeviceGroup::broadcast(Queue, const void*, void*, std::size_t, int) { return false; }
bool DeviceGroup::reduce_in_own_order(Queue, std::span<const GroupReduction>, DType, ReduceOp) {
  return false;
}
void DeviceGroup::register_memory(void*, std::size_t) {}
void DeviceGroup::unregister_memory(void*, std::size_t) noexcept {}
std::string DeviceGroup::failure() { return {}; }

void combine_on_host(const Combination& c) {
  kernels::reduce_ranks({c.destination, c.sources.data(), static_cast<int>(c.sources.size()),
                         c.count, c.type, static_cast<kernels::RankReduce>(c.reduce),
                         c.destination_f32, c.accumulate});
}

}  // namespace tessera::collective
