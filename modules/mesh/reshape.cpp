module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.mesh;

import tessera.base;

// Meshes made of meshes: slices, sub-meshes, flatten, unflatten, concatenate.
namespace tessera {

namespace {

bool is_among(std::span<const int> list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

/// The axes of a mesh that are not in `axes`, ascending.
std::vector<int> other_axes(int ndim, std::span<const int> axes) {
  std::vector<int> others;
  for (int axis = 0; axis < ndim; ++axis) {
    if (!is_among(axes, axis)) {
      others.push_back(axis);
    }
  }
  return others;
}

/// The ranks of `mesh` with its axes in another order, row-major.
std::vector<int> permuted_ranks(const DeviceMesh& mesh, std::span<const int> axes) {
  const std::span<const int> ranks = mesh.group(axes, mesh.ranks().front());
  return {ranks.begin(), ranks.end()};
}

}  // namespace

std::vector<int> DeviceMesh::axes_of(std::span<const std::string> names, const char* what) const {
  if (names.empty()) {
    fail_input({.thing = what,
                .wrong = "no axis is named",
                .advice = fmt::format("name at least one of {}", join_words(data_->names))});
  }
  std::vector<int> axes;
  for (const std::string& name : names) {
    const int axis = axis_index(name);
    if (is_among(axes, axis)) {
      fail_input({.thing = what, .wrong = fmt::format("axis '{}' is named twice", name)});
    }
    axes.push_back(axis);
  }
  return axes;
}

DeviceMesh DeviceMesh::through(std::span<const int> axes, int position) const {
  std::vector<std::string> names;
  Dims sizes;
  for (const int axis : axes) {
    names.push_back(axis_name(axis));
    sizes.push_back(data_->shape[axis]);
  }
  const std::span<const int> ranks = group(axes, data_->ranks[static_cast<std::size_t>(position)]);
  return make(std::move(names), sizes, {ranks.begin(), ranks.end()});
}

DeviceMesh DeviceMesh::slice(std::span<const std::string> names, int rank) const {
  return through(axes_of(names, "mesh slice"), require_position(rank, "mesh slice"));
}

DeviceMesh DeviceMesh::slice(std::string_view name, int rank) const {
  const std::string one(name);
  return slice(std::span(&one, 1), rank);
}

DeviceMesh DeviceMesh::at(std::string_view name, int coordinate) const {
  const int axis = axis_index(name);
  if (ndim() == 1) {
    fail_input({.thing = "mesh",
                .wrong = fmt::format("axis '{}' is the only one", name),
                .advice = "a mesh needs an axis"});
  }
  if (coordinate < 0 || coordinate >= axis_size(axis)) {
    fail_input(
        {.thing = "mesh",
         .wrong = fmt::format("coordinate {} on axis '{}' is out of range", coordinate, name),
         .expected = fmt::format("0 to {}", axis_size(axis) - 1)});
  }
  return through(other_axes(ndim(), std::span(&axis, 1)),
                 static_cast<int>(coordinate * data_->strides[axis]));
}

std::vector<DeviceMesh> DeviceMesh::sub_meshes(std::span<const std::string> names) const {
  const std::vector<int> axes = axes_of(names, "mesh sub_meshes");
  std::vector<DeviceMesh> meshes;
  for (int position = 0; position < size(); ++position) {
    const Dims coordinates = coordinates_at(position);
    if (std::all_of(axes.begin(), axes.end(), [&](int axis) { return coordinates[axis] == 0; })) {
      meshes.push_back(through(axes, position));
    }
  }
  return meshes;
}

DeviceMesh DeviceMesh::flatten(std::span<const std::string> names,
                               std::string_view new_name) const {
  const std::vector<int> flat = axes_of(names, "mesh flatten");
  const int first = *std::min_element(flat.begin(), flat.end());
  std::vector<int> axes;  // all of them, the flattened ones together
  std::vector<std::string> new_names;
  Dims sizes;
  for (int axis = 0; axis < ndim(); ++axis) {
    if (axis == first) {
      axes.insert(axes.end(), flat.begin(), flat.end());
      new_names.emplace_back(new_name);
      sizes.push_back(1);
      for (const int f : flat) {
        sizes.back() *= data_->shape[f];
      }
    } else if (!is_among(flat, axis)) {
      axes.push_back(axis);
      new_names.push_back(axis_name(axis));
      sizes.push_back(data_->shape[axis]);
    }
  }
  return make(std::move(new_names), sizes, permuted_ranks(*this, axes));
}

DeviceMesh DeviceMesh::unflatten(std::string_view name, std::vector<std::string> new_names,
                                 const Dims& sizes) const {
  const int axis = axis_index(name);
  if (sizes.empty() || sizes.product() != data_->shape[axis]) {
    fail_input({.thing = "mesh unflatten",
                .wrong = fmt::format("sizes {} do not multiply to axis '{}' of size {}",
                                     to_string(sizes), name, data_->shape[axis])});
  }
  std::vector<std::string> names;
  Dims shape;
  for (int i = 0; i < ndim(); ++i) {
    if (i == axis) {
      names.insert(names.end(), std::make_move_iterator(new_names.begin()),
                   std::make_move_iterator(new_names.end()));
      for (const std::int64_t size : sizes) {
        shape.push_back(size);
      }
    } else {
      names.push_back(axis_name(i));
      shape.push_back(data_->shape[i]);
    }
  }
  return make(std::move(names), shape, data_->ranks);
}

DeviceMesh DeviceMesh::concatenate(std::span<const DeviceMesh> parts) const {
  if (parts.empty()) {
    fail_input(
        {.thing = "mesh concatenate", .wrong = "no mesh is given", .advice = "give at least one"});
  }
  std::vector<int> common(parts[0].ranks().begin(), parts[0].ranks().end());
  for (const DeviceMesh& part : parts.subspan(1)) {
    std::erase_if(common, [&](int rank) { return !part.contains(rank); });
  }
  if (common.size() != 1 && parts.size() > 1) {
    fail_input({.thing = "mesh concatenate",
                .wrong = fmt::format("the meshes share {} ranks", common.size()),
                .expected = "exactly one",
                .advice = "take slices of different axes through one rank"});
  }
  const Dims origin = coordinates_at(require_position(common.front(), "mesh concatenate"));
  std::vector<std::string> names;
  Dims shape;
  std::vector<Dims> points = {origin};  // coordinates in this mesh, row-major in the axes so far
  for (const DeviceMesh& part : parts) {
    names.insert(names.end(), part.axis_names().begin(), part.axis_names().end());
    std::vector<Dims> further;
    for (const Dims& point : points) {
      for (const int rank : part.ranks()) {
        const Dims there = coordinates_at(require_position(rank, "mesh concatenate"));
        Dims moved = point;
        for (int axis = 0; axis < ndim(); ++axis) {
          moved[axis] += there[axis] - origin[axis];
          if (moved[axis] < 0 || moved[axis] >= data_->shape[axis]) {
            fail_input(
                {.thing = "mesh concatenate",
                 .wrong = fmt::format("the meshes do not span a grid of {}", to_string(*this)),
                 .advice = "take slices of different axes"});
          }
        }
        further.push_back(moved);
      }
    }
    points = std::move(further);
    for (const std::int64_t size : part.shape()) {
      shape.push_back(size);
    }
  }
  std::vector<int> ranks;
  ranks.reserve(points.size());
  for (const Dims& point : points) {
    ranks.push_back(rank_at(point));
  }
  return make(std::move(names), shape, std::move(ranks));
}

DeviceMesh DeviceMesh::rename(std::string_view name, std::string_view new_name) const {
  std::vector<std::string> names = data_->names;
  names[static_cast<std::size_t>(axis_index(name))] = new_name;
  return make(std::move(names), data_->shape, data_->ranks);
}

}  // namespace tessera
