// Which boxes must go from whom to whom between two layouts.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>
module tessera.placement;

import tessera.base;
import tessera.mesh;

namespace tessera {
namespace {

/// A part of the source layout and the ranks that hold it.
struct HeldPart {
  LocalPart box;
  std::vector<int> ranks;
};

using Corner = std::vector<std::int64_t>;

/// The different parts that some ranks hold, in the order of the first rank of each. Where a dim is
/// cut does not depend on the other dims, so the parts lie in a grid, and those that meet a box are
/// found without a look at all others.
class HeldParts {
 public:
  HeldParts(const Layout& layout, std::span<const int> ranks, const Dims& shape)
      : begins_(static_cast<std::size_t>(shape.size())) {
    for (const int rank : ranks) {
      const LocalPart box = local_part(shape, layout, rank);
      if (box.shape.product() == 0) {
        continue;
      }
      const auto [it, fresh] =
          numbers_.try_emplace(Corner(box.offset.begin(), box.offset.end()), parts_.size());
      if (fresh) {
        parts_.push_back({box, {}});
      }
      parts_[it->second].ranks.push_back(rank);
    }
    for (std::size_t d = 0; d < begins_.size(); ++d) {
      for (const auto& [corner, number] : numbers_) {
        begins_[d].push_back(corner[d]);
      }
      std::ranges::sort(begins_[d]);
      const auto rest = std::ranges::unique(begins_[d]);
      begins_[d].erase(rest.begin(), rest.end());
    }
  }

  const HeldPart& operator[](std::size_t number) const { return parts_[number]; }

  /// The numbers of the parts that a box may meet, ascending.
  std::vector<std::size_t> near(const LocalPart& box) const {
    std::vector<std::span<const std::int64_t>> within;
    for (std::size_t d = 0; d < begins_.size(); ++d) {
      const auto dim = static_cast<int>(d);
      const std::vector<std::int64_t>& all = begins_[d];
      auto first = std::ranges::upper_bound(all, box.offset[dim]);
      first -= first == all.begin() ? 0 : 1;
      within.emplace_back(first, std::ranges::lower_bound(all, box.offset[dim] + box.shape[dim]));
      if (within.back().empty()) {
        return {};
      }
    }
    std::vector<std::size_t> found;
    std::vector<std::size_t> at(within.size(), 0);
    Corner corner(within.size());
    for (;;) {
      for (std::size_t d = 0; d < within.size(); ++d) {
        corner[d] = within[d][at[d]];
      }
      if (const auto known = numbers_.find(corner); known != numbers_.end()) {
        found.push_back(known->second);
      }
      std::size_t d = within.size();
      while (d > 0 && ++at[d - 1] == within[d - 1].size()) {
        at[--d] = 0;
      }
      if (d == 0) {
        std::ranges::sort(found);
        return found;
      }
    }
  }

 private:
  std::vector<HeldPart> parts_;
  std::map<Corner, std::size_t> numbers_;
  std::vector<std::vector<std::int64_t>> begins_;  // of the parts, in each dim
};

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
  const HeldParts parts(from, sources, shape);
  std::vector<Transfer> found;
  for (std::size_t turn = 0; turn < destinations.size(); ++turn) {
    const int destination = destinations[turn];
    const LocalPart wanted = local_part(shape, to, destination);
    if (wanted.shape.product() == 0) {
      continue;
    }
    for (const std::size_t number : parts.near(wanted)) {
      const HeldPart& part = parts[number];
      const std::optional<LocalPart> common = intersection(wanted, part.box);
      if (!common) {
        continue;
      }
      const bool own =
          std::find(part.ranks.begin(), part.ranks.end(), destination) != part.ranks.end();
      const int source = own ? destination : part.ranks[turn % part.ranks.size()];
      found.push_back({source, destination, *common});
    }
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
