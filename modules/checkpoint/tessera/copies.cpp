module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/content_hash.hpp"
module tessera.checkpoint;

import tessera.base;
import tessera.collective;
import tessera.mesh;
import tessera.placement;
import tessera.ranks;
import tessera.tensor;
import :copies;
import :checkpoint_index;
import :job;
import :save_plan;
import :group_actions;

namespace tessera {
namespace {

using namespace checkpoint_detail;

/// A part of a tensor, and what a rank holds of it: the first 64 bits of two hashes.
struct Copy {
  std::int64_t part = 0;
  std::int64_t bits = 0;
};

std::int64_t short_hash(std::span<const std::byte> bytes) {
  const std::string hex = content_hash(bytes).substr(0, 16);
  std::uint64_t value = 0;
  std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
  return static_cast<std::int64_t>(value);
}

std::int64_t short_hash(const std::string& text) {
  return short_hash(std::as_bytes(std::span(text)));
}

bool has_copies(const Layout& layout) {
  for (int axis = 0; layout && axis < layout.ndim(); ++axis) {
    if (layout.placement(axis).is_replicate() && layout.mesh().axis_size(axis) > 1) {
      return true;
    }
  }
  return false;
}

/// The copies that this rank holds, and the names of their tensors.
std::vector<Copy> own_copies(const StateDict& state, std::map<std::int64_t, std::string>& names) {
  std::vector<Copy> copies;
  for (const auto& [name, tensor] : state.tensors) {
    if (!tensor.is_distributed() || !has_copies(tensor.layout())) {
      continue;
    }
    const LocalPart part = local_part(tensor.shape(), tensor.layout(), current_rank());
    const std::int64_t key = short_hash(key_of(name, part.offset) + " " + dims_text(part.shape));
    names.emplace(key, name);
    copies.push_back({key, short_hash(bytes_of(packed(local_of(tensor))))});
  }
  return copies;
}

/// Those of all ranks: what each holds of a part, by rank.
std::map<std::int64_t, std::map<int, std::int64_t>> all_copies(collective::Communicator& group,
                                                               std::vector<Copy> own) {
  const auto count = static_cast<std::int64_t>(own.size());
  std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()));
  group.all_gather(&count, counts.data(), 1, DType::i64);
  const auto most = static_cast<std::size_t>(std::ranges::max(counts));
  std::map<std::int64_t, std::map<int, std::int64_t>> held;
  if (most == 0) {
    return held;
  }
  own.resize(most);
  std::vector<Copy> all(most * counts.size());
  group.all_gather(own.data(), all.data(), static_cast<std::int64_t>(2 * most), DType::i64);
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(counts[rank]); ++i) {
      const Copy& copy = all[rank * most + i];
      held[copy.part].emplace(static_cast<int>(rank), copy.bits);
    }
  }
  return held;
}

/// What is wrong with the copies of a part; empty: they are alike.
std::string difference_of(const std::map<int, std::int64_t>& copies) {
  std::map<std::int64_t, std::vector<std::int32_t>> by_bits;
  for (const auto& [rank, bits] : copies) {
    by_bits[bits].push_back(rank);
  }
  if (by_bits.size() < 2) {
    return "";
  }
  const auto most =
      std::ranges::max_element(by_bits, {}, [](const auto& entry) { return entry.second.size(); });
  std::vector<std::int32_t> odd;
  bool clear = true;
  for (const auto& [bits, ranks] : by_bits) {
    if (bits != most->first) {
      odd.insert(odd.end(), ranks.begin(), ranks.end());
      clear = clear && ranks.size() < most->second.size();
    }
  }
  std::ranges::sort(odd);
  return clear ? fmt::format("{} {} other bits than {}", numbers_text("rank", odd),
                             odd.size() == 1 ? "holds" : "hold", numbers_text("rank", most->second))
               : fmt::format("{} and {} hold different bits", numbers_text("rank", most->second),
                             numbers_text("rank", odd));
}

}  // namespace

void check_copies(const StateDict& state) {
  std::map<std::int64_t, std::string> names;
  const auto held = all_copies(group_named("checkpoint plan"), own_copies(state, names));
  for (const auto& [part, copies] : held) {
    const std::string wrong = difference_of(copies);
    if (const auto name = names.find(part); !wrong.empty() && name != names.end()) {
      fail({.thing = "train.checksums",
            .wrong = fmt::format("{} of '{}', which must be alike", wrong, name->second),
            .advice = "look for a machine with faulty memory; a plugin that computes differently "
                      "on each rank has this effect too"});
    }
  }
}

}  // namespace tessera
