module;
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.collective;

namespace tessera::runs {
namespace {

std::string text_of(const std::string& axis, const Link& link) {
  return fmt::format("{} {:.3g} us, {:.3g} GB/s", axis, link.latency * 1e6, link.bandwidth / 1e9);
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    text += (text.empty() ? "" : "; ") + part;
  }
  return text;
}

Link configured(const MeshConfig& mesh, std::size_t axis) {
  return {.latency = mesh.latency_us[axis] * 1e-6, .bandwidth = mesh.bandwidth_gb[axis] * 1e9};
}

double power_of_two(double value) { return std::exp2(std::round(std::log2(value))); }

/// Seconds of one all-gather of `count` floats a rank: the fastest of several.
double seconds_of_gather(collective::Communicator& group, std::int64_t count, int rounds) {
  const std::vector<float> source(static_cast<std::size_t>(count));
  std::vector<float> target(source.size() * static_cast<std::size_t>(group.size()));
  double best = 1;
  for (int round = 0; round < rounds; ++round) {
    group.barrier();
    const auto start = std::chrono::steady_clock::now();
    group.all_gather(source.data(), target.data(), count, DType::f32);
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

Link measured(collective::Communicator& group) {
  const std::int64_t count = std::max<std::int64_t>(1 << 12, (1 << 18) / group.size());
  seconds_of_gather(group, count, 1);  // pages, and the group's memory
  const double latency = std::max(1e-7, seconds_of_gather(group, 16, 20));
  const double seconds = seconds_of_gather(group, count, 5);
  const double bytes = 4.0 * static_cast<double>(count * (group.size() - 1));
  Link link{.latency = power_of_two(latency),
            .bandwidth = power_of_two(bytes / std::max(1e-7, seconds - latency))};
  group.broadcast(&link.latency, 1, DType::f64, 0);
  group.broadcast(&link.bandwidth, 1, DType::f64, 0);
  return link;
}

}  // namespace

void set_configured_links(const RunSpec& config, const DeviceMesh& mesh) {
  for (std::size_t axis = 0; axis < config.mesh.latency_us.size(); ++axis) {
    set_link(mesh, static_cast<int>(axis), configured(config.mesh, axis));
  }
}

void measure_links(const RunSpec& config, const DeviceMesh& mesh, collective::World& world) {
  if (!config.mesh.measure_links || world.size() == 1) {
    return;
  }
  const Link link = measured(world.everyone());
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    set_link(mesh, axis, link);
  }
}

std::string links_text(const RunSpec& config) {
  std::vector<std::string> parts;
  for (std::size_t axis = 0; axis < config.mesh.latency_us.size(); ++axis) {
    parts.push_back(text_of(config.mesh.axes[axis], configured(config.mesh, axis)));
  }
  return config.mesh.measure_links ? "measured when the run starts" : joined(parts);
}

std::string links_text(const DeviceMesh& mesh) {
  std::vector<std::string> parts;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    parts.push_back(text_of(mesh.axis_name(axis), link_of(mesh, axis)));
  }
  return joined(parts);
}

}  // namespace tessera::runs
