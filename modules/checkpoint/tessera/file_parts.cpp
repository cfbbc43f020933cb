module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import :chunks;
import :header;
import :checkpoint_index;
import :save_plan;
import :table;

namespace tessera::checkpoint_detail {
namespace {

constexpr std::size_t most_writers = 16;  // of a file, for a tensor that is a small part of all
constexpr std::size_t least_piece = std::size_t{64} << 10;  // bytes; smaller ones are not cut

/// Sets of ranks that grow together.
class Groups {
 public:
  explicit Groups(int ranks) : first_(static_cast<std::size_t>(ranks)) {
    std::iota(first_.begin(), first_.end(), 0);
  }
  int of(int rank) const {
    while (at(rank) != rank) {
      rank = at(rank);
    }
    return rank;
  }
  void join(int a, int b) {
    const auto [low, high] = std::minmax(of(a), of(b));
    first_[static_cast<std::size_t>(high)] = low;
  }
  std::map<int, std::vector<int>> all() const {
    std::map<int, std::vector<int>> groups;
    for (int rank = 0; rank < static_cast<int>(first_.size()); ++rank) {
      groups[of(rank)].push_back(rank);
    }
    return groups;
  }

 private:
  int at(int rank) const { return first_[static_cast<std::size_t>(rank)]; }
  std::vector<int> first_;
};

/// These groups, joined where ranks hold copies of a tensor of this layout.
Groups joined(Groups groups, const Layout& layout, int ranks) {
  for (const int rank : layout.mesh().ranks()) {
    const std::optional<int> keeper = keeper_of(layout, rank);
    if (rank < ranks && keeper && *keeper < ranks) {
      groups.join(rank, *keeper);
    }
  }
  return groups;
}

std::size_t largest(const Groups& groups) {
  std::size_t most = 0;
  for (const auto& [first, ranks] : groups.all()) {
    most = std::max(most, ranks.size());
  }
  return most;
}

/// A box in as many pieces along one dim, if it has a dim that is long enough.
std::vector<LocalPart> pieces_of(const LocalPart& box, std::size_t count, std::size_t bytes) {
  const auto n = static_cast<std::int64_t>(count);
  const auto* const dim = std::find_if(box.shape.begin(), box.shape.end(),
                                       [&](std::int64_t extent) { return extent >= n; });
  if (count == 1 || bytes < count * least_piece || dim == box.shape.end()) {
    return {box};
  }
  const auto d = static_cast<int>(dim - box.shape.begin());
  std::vector<LocalPart> pieces(count, box);
  for (std::int64_t i = 0; i < n; ++i) {
    LocalPart& piece = pieces[static_cast<std::size_t>(i)];
    const std::int64_t begin = i * *dim / n;
    piece.offset[d] += begin;
    piece.shape[d] = (i + 1) * *dim / n - begin;
  }
  return pieces;
}

using HeldBoxes = std::vector<std::pair<LocalPart, std::vector<int>>>;

/// Which boxes a group writes: those whose copy with the lowest coordinates it has, or all.
enum class WrittenBoxes { kept_here, held_here };

/// The boxes of a tensor that a group writes, each with the ranks of the group that hold it.
HeldBoxes boxes_of(const IndexedTensor& tensor, const std::vector<int>& group,
                   WrittenBoxes written) {
  const Dims& shape = tensor.info.shape;
  HeldBoxes boxes;
  if (shape.product() == 0) {
    return boxes;
  }
  if (!tensor.layout) {
    if (group.front() == 0 || written == WrittenBoxes::held_here) {
      boxes.push_back({{Dims::filled(shape.size(), 0), shape}, {group.front()}});
    }
    return boxes;
  }
  std::map<int, std::vector<int>> holders;
  for (const int rank : group) {
    const std::optional<int> keeper = keeper_of(tensor.layout, rank);
    if (keeper && (written == WrittenBoxes::held_here ||
                   std::binary_search(group.begin(), group.end(), *keeper))) {
      holders[*keeper].push_back(rank);
    }
  }
  for (auto& [keeper, ranks] : holders) {
    const LocalPart box = local_part(shape, tensor.layout, keeper);
    if (box.shape.product() > 0) {
      boxes.emplace_back(box, std::move(ranks));
    }
  }
  return boxes;
}

/// What a group writes; see plan_file.
CheckpointFile planned_file(const IndexedTensors& tensors, const std::vector<int>& group,
                            WrittenBoxes written) {
  CheckpointFile file{fmt::format("rank-{}.safetensors", group.front()), group, {}};
  std::map<int, std::size_t> load;  // bytes of each writer
  // A model has thousands of tensors and a handful of shapes.
  std::map<std::pair<std::int64_t, std::vector<std::int64_t>>, HeldBoxes> known;
  std::size_t number = 0;
  for (const auto& [name, tensor] : tensors) {
    const Dims& shape = tensor.info.shape;
    const auto [at, fresh] = known.try_emplace(
        {tensor.layout ? std::int64_t{tensor.layout.id()} : -1, {shape.begin(), shape.end()}},
        HeldBoxes());
    if (fresh) {
      at->second = boxes_of(tensor, group, written);
    }
    for (const auto& [box, holders] : at->second) {
      const std::size_t bytes =
          static_cast<std::size_t>(box.shape.product()) * size_of(tensor.info.dtype);
      for (const LocalPart& piece : pieces_of(box, holders.size(), bytes)) {
        const int writer =
            *std::ranges::min_element(holders, [&](int a, int b) { return load[a] < load[b]; });
        file.parts.push_back({name, number, tensor.info.dtype, piece, writer, 0});
        load[writer] += file.parts.back().bytes();
      }
    }
    ++number;
  }
  for (std::uint64_t i = 0; FilePart & part : file.parts) {
    part.begin = i++;  // the order so far
  }
  // Larger elements first, so that all are aligned; then what one rank writes.
  std::ranges::sort(file.parts, [](const FilePart& a, const FilePart& b) {
    return std::tuple(size_of(b.dtype), a.writer, a.begin) <
           std::tuple(size_of(a.dtype), b.writer, b.begin);
  });
  std::uint64_t at = 0;
  for (FilePart& part : file.parts) {
    part.begin = at;
    at += part.bytes();
  }
  return file;
}

}  // namespace

std::string key_of(const std::string& name, const Dims& offset) {
  return fmt::format("{}@{}", name, dims_text(offset));
}

std::optional<int> keeper_of(const Layout& layout, int rank) {
  std::optional<Dims> coordinates = layout.mesh().coordinates_of(rank);
  if (!coordinates) {
    return std::nullopt;
  }
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    if (layout.placement(axis).is_replicate()) {
      (*coordinates)[axis] = 0;
    }
  }
  return layout.mesh().rank_at(*coordinates);
}

std::vector<std::vector<int>> file_groups(const IndexedTensors& tensors, int ranks) {
  std::map<std::uint32_t, std::pair<Layout, std::uint64_t>> layouts;  // with their bytes
  std::uint64_t all = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(tensor.info.shape.product()) * size_of(tensor.info.dtype);
    all += bytes;
    if (tensor.layout) {
      auto& [layout, sum] = layouts[tensor.layout.id()];
      layout = tensor.layout;
      sum += bytes;
    }
  }
  // Those of most bytes first; the order must not depend on the process, as ids do.
  std::vector<std::pair<Layout, std::uint64_t>> order;
  for (const auto& [id, entry] : layouts) {
    order.push_back(entry);
  }
  std::ranges::sort(order, [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first.hash() < b.first.hash();
  });
  Groups groups(ranks);
  for (const auto& [layout, bytes] : order) {
    Groups next = joined(groups, layout, ranks);
    if (2 * bytes >= all || largest(next) <= most_writers) {
      groups = std::move(next);
    }
  }
  std::vector<std::vector<int>> result;
  for (auto& [first, members] : groups.all()) {
    result.push_back(members);
  }
  return result;
}

CheckpointFile plan_file(const IndexedTensors& tensors, const std::vector<int>& group) {
  return planned_file(tensors, group, WrittenBoxes::kept_here);
}

CheckpointFile plan_holdings(const IndexedTensors& tensors, const std::vector<int>& ranks) {
  return planned_file(tensors, ranks, WrittenBoxes::held_here);
}

std::string header_of(const CheckpointFile& file,
                      const std::vector<std::vector<std::string>>& hashes) {
  std::vector<HeaderEntry> entries;
  std::vector<std::string> joined;
  entries.reserve(file.parts.size());
  joined.reserve(file.parts.size());  // the rows' hashes are in it
  std::vector<TableRow> rows;
  for (std::size_t i = 0; i < file.parts.size(); ++i) {
    const FilePart& part = file.parts[i];
    entries.push_back(
        {key_of(part.name, part.box.offset), {part.dtype, part.box.shape}, part.begin});
    joined.push_back(fmt::format("{}", fmt::join(hashes[i], "")));
    rows.push_back({part.tensor, part.box, part.begin, joined.back()});
  }
  std::ranges::sort(rows, {}, [](const TableRow& row) { return std::pair(row.tensor, row.begin); });
  const std::map<std::string, std::string> metadata = {{table_name, table_text(rows)}};
  return safetensors_header(entries, metadata, file.name);
}

std::size_t header_bytes(const CheckpointFile& file) {
  std::vector<std::vector<std::string>> blank;
  blank.reserve(file.parts.size());
  for (const FilePart& part : file.parts) {
    blank.push_back({std::string(32 * chunks_of(part.bytes()), '0')});
  }
  return header_of(file, blank).size();
}

}  // namespace tessera::checkpoint_detail
