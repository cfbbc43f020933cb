module;
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tessera/links_version.hpp>
#include <utility>
module tessera.placement;

import tessera.base;
import tessera.mesh;

namespace tessera {

namespace {

struct Links {
  std::mutex mutex;
  std::map<std::pair<std::uint32_t, int>, Link> set;  // by mesh and axis
  std::atomic<std::uint64_t> version = 0;
};

Links& links() {
  static Links* const instance = new Links;
  return *instance;
}

}  // namespace

namespace cost_detail {

std::uint64_t links_version() { return links().version.load(std::memory_order_acquire); }

}  // namespace cost_detail

Link link_of(const DeviceMesh& mesh, int axis) {
  const std::lock_guard lock(links().mutex);
  const auto it = links().set.find({mesh.id(), axis});
  return it == links().set.end() ? Link{} : it->second;
}

void set_link(const DeviceMesh& mesh, int axis, Link link) {
  if (!(link.latency >= 0) || !(link.bandwidth > 0)) {
    fail_input(
        {.thing = fmt::format("link of mesh axis '{}'", mesh.axis_name(axis)),
         .wrong = fmt::format("latency {} s and bandwidth {} B/s", link.latency, link.bandwidth),
         .expected = "at least 0 and above 0"});
  }
  const std::lock_guard lock(links().mutex);
  links().set[{mesh.id(), axis}] = link;
  ++links().version;
}

double local_step_cost(std::int64_t bytes) {
  constexpr double call = 0.5e-6;       // seconds
  constexpr double memory_rate = 20e9;  // bytes a second
  return call + static_cast<double>(bytes) / memory_rate;
}

// Declared in a header, so it belongs to no module.
extern "C++" {
std::uint64_t internal::links_version() { return cost_detail::links_version(); }
}

}  // namespace tessera
