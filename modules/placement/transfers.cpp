// Which boxes must go from whom to whom between two layouts.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>
module tessera.placement;

import tessera.base;
import tessera.mesh;

namespace tessera {
namespace {

/// A part of the source layout and the ranks that hold it.
struct Held {
  LocalPart box;
  std::vector<int> ranks;
};

std::vector<Held> parts_of(const Layout& layout, std::span<const int> ranks, const Dims& shape) {
  std::vector<Held> parts;
  std::map<std::vector<std::int64_t>, std::size_t> known;  // by the box's offset
  for (const int rank : ranks) {
    const LocalPart box = local_part(shape, layout, rank);
    if (box.shape.product() == 0) {
      continue;
    }
    const std::vector<std::int64_t> corner(box.offset.begin(), box.offset.end());
    const auto [it, fresh] = known.try_emplace(corner, parts.size());
    if (fresh) {
      parts.push_back({box, {}});
    }
    parts[it->second].ranks.push_back(rank);
  }
  return parts;
}

/// The box that both cover; false when there is none.
bool intersect(const LocalPart& a, const LocalPart& b, LocalPart& common) {
  common = a;
  for (int d = 0; d < a.shape.size(); ++d) {
    const std::int64_t begin = std::max(a.offset[d], b.offset[d]);
    const std::int64_t end = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    if (end <= begin) {
      return false;
    }
    common.offset[d] = begin;
    common.shape[d] = end - begin;
  }
  return true;
}

void refuse_partial(const Layout& layout) {
  if (layout.has_partial()) {
    fail({.thing = "transfers",
          .wrong = fmt::format("{} has a Partial, whose terms must be reduced", to_string(layout)),
          .advice = "redistribute it to Replicate or Shard first"});
  }
}

}  // namespace

std::vector<Transfer> transfers(const Layout& from, std::span<const int> sources, const Layout& to,
                                std::span<const int> destinations, const Dims& shape) {
  const std::vector<Held> parts = parts_of(from, sources, shape);
  std::vector<Transfer> found;
  std::size_t turn = 0;
  for (const int destination : destinations) {
    const LocalPart wanted = local_part(shape, to, destination);
    for (const Held& part : parts) {
      LocalPart common;
      if (wanted.shape.product() == 0 || !intersect(wanted, part.box, common)) {
        continue;
      }
      const bool own =
          std::find(part.ranks.begin(), part.ranks.end(), destination) != part.ranks.end();
      const int source = own ? destination : part.ranks[turn % part.ranks.size()];
      found.push_back({source, destination, common});
    }
    ++turn;
  }
  return found;
}

std::vector<Transfer> transfers(const Layout& from, const Layout& to, const Dims& shape) {
  refuse_partial(from);
  refuse_partial(to);
  check_layout_fits(from, shape.size(), "transfers");
  check_layout_fits(to, shape.size(), "transfers");
  return transfers(from, from.mesh().ranks(), to, to.mesh().ranks(), shape);
}

}  // namespace tessera
