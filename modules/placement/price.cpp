// Prices of a plan's steps: what each moves and costs.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
module tessera.placement;

import tessera.base;
import tessera.mesh;
import tessera.calls;

namespace tessera {
namespace {

/// That this rank receives in a call over bytes which are cut for the ranks in this way.
std::int64_t received(collective::CallKind kind, std::int64_t chunk, std::int64_t total, int rank,
                      int ranks) {
  const collective::Segment bytes{.chunk = chunk, .total = total};
  return collective::received_bytes({.kind = kind, .dtype = DType::u8, .count = total}, {&bytes, 1},
                                    rank, ranks, nullptr);
}

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
  const int ranks = rank_count(step);
  if (norm_order(step) != 0 && communicates(step.kind)) {
    element_size = 8;  // powers travel in f64
  }
  switch (step.kind) {
    case StepKind::all_gather: {
      // The last rank has the shortest chunk.
      Dims chunk = padded_local_shape(shape, step.after);
      const std::int64_t total = chunk.product() * element_size;
      chunk[step.from_dim] = chunk_size(chunk[step.from_dim], ranks);
      step.bytes = received(collective::CallKind::all_gather_segments,
                            chunk.product() * element_size, total, ranks - 1, ranks);
      break;
    }
    case StepKind::reduce_scatter: {
      const std::int64_t chunk = padded_bytes(step.after);
      step.bytes =
          received(collective::CallKind::reduce_scatter_segments, chunk, chunk * ranks, 0, ranks);
      break;
    }
    case StepKind::all_reduce: {
      const std::int64_t total = padded_bytes(step.before);
      step.bytes = received(collective::CallKind::all_reduce, total, total, 0, ranks);
      break;
    }
    case StepKind::all_to_all: {
      // From each other chunk of one dim the own chunk of the other.
      const std::int64_t from = padded_local_shape(shape, step.after)[step.from_dim];
      Dims received = padded_local_shape(shape, step.before);
      const std::int64_t to = received[step.to_dim];
      for (int rank = 0; rank < ranks; ++rank) {
        received[step.from_dim] = from - chunk_of({0, from}, ranks, rank).length;
        received[step.to_dim] = chunk_of({0, to}, ranks, rank).length;
        step.bytes = std::max(step.bytes, received.product() * element_size);
      }
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
      // The boxes were counted; they are packed before and unpacked after.
      step.cost = link_cost(step) + local_step_cost(padded_bytes(step.before)) +
                  local_step_cost(padded_bytes(step.after));
      return;
  }
  step.cost = link_cost(step);
}

}  // namespace plan_detail

}  // namespace tessera
