module;
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
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
