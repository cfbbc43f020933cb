module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.mesh;

import tessera.base;

// Ranks, coordinates, and the ranks that share coordinates.
namespace tessera {

namespace {

/// Where all coordinates of some axes lead, as differences of positions: row-major over `axes`.
std::vector<int> displacements(std::span<const int> axes, const Dims& shape, const Dims& strides) {
  std::vector<int> found = {0};
  for (const int axis : axes) {
    std::vector<int> longer;
    longer.reserve(found.size() * static_cast<std::size_t>(shape[axis]));
    for (const int base : found) {
      for (std::int64_t c = 0; c < shape[axis]; ++c) {
        longer.push_back(base + static_cast<int>(c * strides[axis]));
      }
    }
    found = std::move(longer);
  }
  return found;
}

}  // namespace

int DeviceMesh::find_position(int rank) const {
  const auto& table = data_->positions;
  const auto it = std::lower_bound(table.begin(), table.end(), std::pair(rank, 0));
  return it != table.end() && it->first == rank ? it->second : -1;
}

int DeviceMesh::require_position(int rank, const char* what) const {
  const int position = position_of(rank);
  if (position < 0) [[unlikely]] {
    fail({.thing = what,
          .wrong = fmt::format("rank {} is not in {}", rank, to_string(*this)),
          .advice = "only ranks of the mesh may ask"});
  }
  return position;
}

Dims DeviceMesh::coordinates_at(int position) const {
  Dims coordinates = data_->shape;
  for (int axis = 0; axis < ndim(); ++axis) {
    coordinates[axis] = position / data_->strides[axis] % data_->shape[axis];
  }
  return coordinates;
}

int DeviceMesh::rank_at(const Dims& coordinates) const {
  if (coordinates.size() != ndim()) {
    fail({.thing = "mesh",
          .wrong = fmt::format("{} coordinates for {} axes", coordinates.size(), ndim()),
          .got = fmt::format("{}, {}", to_string(coordinates), to_string(*this))});
  }
  std::int64_t position = 0;
  for (int axis = 0; axis < ndim(); ++axis) {
    if (coordinates[axis] < 0 || coordinates[axis] >= data_->shape[axis]) {
      fail({.thing = "mesh",
            .wrong = fmt::format("coordinate {} on axis '{}' is out of range", coordinates[axis],
                                 axis_name(axis)),
            .expected = fmt::format("0 to {}", data_->shape[axis] - 1)});
    }
    position += coordinates[axis] * data_->strides[axis];
  }
  return data_->ranks[static_cast<std::size_t>(position)];
}

std::optional<Dims> DeviceMesh::coordinates_of(int rank) const {
  const int position = position_of(rank);
  if (position < 0) {
    return std::nullopt;
  }
  return coordinates_at(position);
}

std::span<const int> DeviceMesh::group(int axis, int rank) const {
  const auto position = static_cast<std::size_t>(require_position(rank, "mesh group"));
  const auto size = static_cast<std::size_t>(data_->shape[axis]);
  const auto after = static_cast<std::size_t>(data_->strides[axis]);
  const std::size_t group = position / (after * size) * after + position % after;
  return {data_->groups[static_cast<std::size_t>(axis)].data() + group * size, size};
}

std::span<const int> DeviceMesh::group(std::span<const int> axes, int rank) const {
  if (axes.size() == 1) {
    return group(axes.front(), rank);
  }
  // The key is the group's axes and its first position, the one with coordinate 0 on all of them.
  std::vector<int> key(axes.begin(), axes.end());
  int first = require_position(rank, "mesh group");
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const int axis = axes[i];
    if (axis < 0 || axis >= ndim() ||
        std::find(axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(i), axis) !=
            axes.begin() + static_cast<std::ptrdiff_t>(i)) {
      fail({.thing = "mesh group",
            .wrong = fmt::format("axes [{}] are not distinct axes of {}", fmt::join(axes, ", "),
                                 to_string(*this))});
    }
    first -=
        static_cast<int>(first / data_->strides[axis] % data_->shape[axis] * data_->strides[axis]);
  }
  key.push_back(first);
  const std::lock_guard lock(data_->several_mutex);
  auto it = data_->several.find(key);
  if (it == data_->several.end()) {
    std::vector<int> ranks = displacements(axes, data_->shape, data_->strides);
    for (int& r : ranks) {
      r = data_->ranks[static_cast<std::size_t>(first + r)];
    }
    it = data_->several.emplace(std::move(key), std::move(ranks)).first;
  }
  return it->second;
}

}  // namespace tessera
