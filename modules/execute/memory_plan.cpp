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

/// The pieces that have an offset, for those that ask which ones are needed at a time of theirs. A
/// piece looks at a window of the program that is about as long as itself, so that short ones do
/// not look at all others.
class PlacedPieces {
 public:
  using Window = std::vector<std::size_t>;

  PlacedPieces(std::span<const MemoryPiece> pieces, const std::vector<std::int64_t>& offsets)
      : pieces_(pieces), offsets_(offsets) {
    int begin = 0;
    int end = 0;
    for (const MemoryPiece& piece : pieces) {
      begin = std::min(begin, piece.first.number);
      end = std::max(end, piece.last.number);
    }
    begin_ = begin;
    for (int step = shortest_step; levels_.empty() || levels_.back().step <= end - begin;
         step *= 8) {
      const int windows = (end - begin) / step + 1;
      levels_.push_back({step, std::vector<Window>(static_cast<std::size_t>(windows))});
    }
  }

  /// All placed pieces that overlap in time with this one are among them, in the order of offsets.
  const Window& near(const MemoryPiece& piece) const {
    const auto level = std::ranges::find_if(levels_, [&](const Level& one) {
      return piece.last.number - piece.first.number < one.step;
    });
    return level->windows[window_of(piece.first, level->step)];
  }

  void add(std::size_t at) {
    const MemoryPiece& piece = pieces_[at];
    for (Level& level : levels_) {
      const std::size_t first = window_of(piece.first, level.step);
      const std::size_t last = window_of(piece.last, level.step);
      for (std::size_t w = first == 0 ? 0 : first - 1; w <= last; ++w) {
        Window& window = level.windows[w];
        window.insert(std::ranges::upper_bound(window, offsets_[at], {},
                                               [&](std::size_t i) { return offsets_[i]; }),
                      at);
      }
    }
  }

 private:
  static constexpr int shortest_step = 64;
  struct Level {
    int step;
    std::vector<Window> windows;  // each is two steps long, and begins a step after the one before
  };

  /// The last window that has begun at a place.
  std::size_t window_of(PlaceIndex place, int step) const {
    return static_cast<std::size_t>((place.number - begin_) / step);
  }

  std::span<const MemoryPiece> pieces_;
  const std::vector<std::int64_t>& offsets_;
  int begin_ = 0;
  std::vector<Level> levels_;
};

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
  PlacedPieces placed(pieces, plan.offsets);
  for (const std::size_t at : order) {
    const std::int64_t bytes = aligned(pieces[at].bytes, alignment);
    if (bytes == 0) {
      continue;
    }
    std::int64_t end = 0;  // of those that were passed
    std::int64_t best = -1;
    std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
    for (const std::size_t other : placed.near(pieces[at])) {
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
    placed.add(at);
  }
  return plan;
}

}  // namespace tessera::graph
