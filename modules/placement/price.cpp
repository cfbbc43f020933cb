// What a step of a plan moves and costs.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
module tessera.placement;

import tessera.base;
import tessera.mesh;

namespace tessera {
namespace {

/// By the slowest link of the step's axes.
double link_cost(const Step& step) {
  Link slowest = link_of(step.before.mesh(), step.axes[0]);
  for (const int axis : step.axes) {
    const Link link = link_of(step.before.mesh(), axis);
    slowest.latency = std::max(slowest.latency, link.latency);
    slowest.bandwidth = std::min(slowest.bandwidth, link.bandwidth);
  }
  return slowest.latency + static_cast<double>(step.bytes) / slowest.bandwidth;
}

}  // namespace

namespace plan_detail {

void price(Step& step, const Dims& shape, std::int64_t element_size) {
  const auto padded_bytes = [&](const Layout& layout) {
    return padded_local_shape(shape, layout).product() * element_size;
  };
  const std::int64_t ranks = ways(step);
  switch (step.kind) {
    case StepKind::all_gather:
      step.bytes = (ranks - 1) * padded_bytes(step.before);
      break;
    case StepKind::reduce_scatter:
      step.bytes = (ranks - 1) * padded_bytes(step.after);
      break;
    case StepKind::all_reduce:
      step.bytes = 2 * (ranks - 1) * padded_bytes(step.before) / ranks;
      break;
    case StepKind::all_to_all: {
      Dims block = padded_local_shape(shape, step.before);
      block[step.to_dim] = chunk_size(block[step.to_dim], static_cast<int>(ranks));
      step.bytes = (ranks - 1) * block.product() * element_size;
      break;
    }
    case StepKind::slice:
    case StepKind::keep_first:
    case StepKind::pad:
      step.cost = local_step_cost(padded_bytes(step.after));
      return;
    case StepKind::relabel:
      step.cost = local_step_cost(0);
      return;
    case StepKind::exchange:
      // The boxes were counted; they are packed before and unpacked behind.
      step.cost = link_cost(step) + local_step_cost(padded_bytes(step.before)) +
                  local_step_cost(padded_bytes(step.after));
      return;
  }
  step.cost = link_cost(step);
}

}  // namespace plan_detail

}  // namespace tessera
