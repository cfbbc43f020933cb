// Prices of a plan's steps: what each moves and costs.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>
module tessera.placement;

import tessera.base;
import tessera.mesh;
import tessera.calls;

namespace tessera {
namespace {

using collective::CallKind;

/// Bytes that a rank receives in a call over bytes which are cut for the ranks in this way.
std::int64_t received(CallKind kind, std::int64_t chunk, std::int64_t total, int rank, int ranks) {
  const collective::Segment bytes{.chunk = chunk, .total = total};
  return collective::received_bytes({.kind = kind, .dtype = DType::u8, .count = total}, {&bytes, 1},
                                    rank, ranks, nullptr);
}

/// Bytes that the rank which receives most receives in an all-to-all: from each other chunk of one
/// dim the own chunk of the other. `box` has the other dims. Later chunks are not longer, so only
/// the first rank of each pair of lengths is looked at.
std::int64_t most_crossed(Dims box, const Step& step, std::int64_t from, int ranks,
                          std::int64_t element_size) {
  const std::int64_t to = box[step.to_dim];
  std::vector<std::int64_t> lengths;
  for (int member = 0; member < ranks; ++member) {
    lengths.push_back(chunk_of({0, from}, ranks, member).length);
  }
  std::int64_t most = 0;
  std::pair<std::int64_t, std::int64_t> last{-1, -1};
  for (int rank = 0; rank < ranks; ++rank) {
    const std::pair both{lengths[static_cast<std::size_t>(rank)],
                         chunk_of({0, to}, ranks, rank).length};
    if (both == std::exchange(last, both)) {
      continue;
    }
    std::vector<std::int64_t> counts;
    box[step.to_dim] = both.second;
    for (const std::int64_t length : lengths) {
      box[step.from_dim] = length;
      counts.push_back(box.product() * element_size);
    }
    most = std::max(most, collective::received_bytes(DType::u8, counts, rank));
  }
  return most;
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
  if (const auto local = step.kind.local()) {
    step.cost = local_step_cost(*local == LocalStep::relabel ? 0 : padded_bytes(step.after));
    return;
  }
  const CallKind call = *step.kind.call();
  switch (call) {
    case CallKind::all_gather: {
      // The last rank has the shortest chunk.
      Dims chunk = padded_local_shape(shape, step.after);
      const std::int64_t total = chunk.product() * element_size;
      chunk[step.from_dim] = chunk_size(chunk[step.from_dim], ranks);
      step.bytes = received(CallKind::all_gather_segments, chunk.product() * element_size, total,
                            ranks - 1, ranks);
      break;
    }
    case CallKind::reduce_scatter: {
      const std::int64_t chunk = padded_bytes(step.after);
      step.bytes = received(CallKind::reduce_scatter_segments, chunk, chunk * ranks, 0, ranks);
      break;
    }
    case CallKind::all_reduce: {
      const std::int64_t total = padded_bytes(step.before);
      step.bytes = received(call, total, total, 0, ranks);
      break;
    }
    case CallKind::all_to_all:
      step.bytes =
          most_crossed(padded_local_shape(shape, step.before), step,
                       padded_local_shape(shape, step.after)[step.from_dim], ranks, element_size);
      break;
    case CallKind::all_to_all_counts:
      // The boxes were counted; they are packed before and unpacked after.
      step.cost = link_cost(step) + local_step_cost(padded_bytes(step.before)) +
                  local_step_cost(padded_bytes(step.after));
      return;
    default:
      fail(fmt::format("redistribution: no step makes a call of the kind {}",
                       collective::name_of(call)));
  }
  step.cost = link_cost(step);
}

}  // namespace plan_detail

}  // namespace tessera
