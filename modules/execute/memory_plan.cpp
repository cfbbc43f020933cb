module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>
module tessera.execute;

import tessera.base;
import tessera.program;

namespace tessera::graph {
namespace {

std::int64_t aligned(std::int64_t bytes, std::int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

bool overlap(const MemoryPiece& a, const MemoryPiece& b) {
  return a.first <= b.last && b.first <= a.last;
}

std::int64_t most_at_once(std::span<const MemoryPiece> pieces, std::int64_t alignment) {
  std::map<PlaceIndex, std::int64_t> changes;
  for (const MemoryPiece& piece : pieces) {
    changes[piece.first] += aligned(piece.bytes, alignment);
    changes[piece.last + 1] -= aligned(piece.bytes, alignment);
  }
  std::int64_t now = 0;
  std::int64_t most = 0;
  for (const auto& [place, change] : changes) {
    now += change;
    most = std::max(most, now);
  }
  return most;
}

}  // namespace

MemoryPlan plan_memory(std::span<const MemoryPiece> pieces, std::int64_t alignment) {
  for (const MemoryPiece& piece : pieces) {
    if (piece.bytes < 0 || piece.last < piece.first) {
      fail({.thing = "memory plan",
            .wrong = fmt::format("a piece of {} bytes is needed from place {} to {}", piece.bytes,
                                 piece.first.number, piece.last.number),
            .expected = "at least 0 bytes, and an end that is not before the beginning"});
    }
  }
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return std::tuple(-pieces[a].bytes, pieces[a].first, a) <
           std::tuple(-pieces[b].bytes, pieces[b].first, b);
  });
  MemoryPlan plan{.offsets = std::vector<std::int64_t>(pieces.size(), 0),
                  .least = most_at_once(pieces, alignment)};
  std::vector<std::size_t> placed;  // by offset
  for (const std::size_t at : order) {
    const std::int64_t bytes = aligned(pieces[at].bytes, alignment);
    if (bytes == 0) {
      continue;
    }
    std::int64_t end = 0;  // of those that were passed
    std::int64_t best = -1;
    std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
    for (const std::size_t other : placed) {
      if (!overlap(pieces[at], pieces[other])) {
        continue;
      }
      const std::int64_t gap = plan.offsets[other] - end;
      if (gap >= bytes && gap < smallest) {
        best = end;
        smallest = gap;
      }
      end = std::max(end, plan.offsets[other] + aligned(pieces[other].bytes, alignment));
    }
    plan.offsets[at] = best >= 0 ? best : end;
    plan.bytes = std::max(plan.bytes, plan.offsets[at] + bytes);
    const auto after = std::ranges::upper_bound(placed, plan.offsets[at], {},
                                                [&](std::size_t i) { return plan.offsets[i]; });
    placed.insert(after, at);
  }
  return plan;
}

}  // namespace tessera::graph
