module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/shown.hpp>
#include <unordered_map>
#include <utility>
#include <vector>
module tessera.mesh;

import tessera.base;

namespace tessera {

using mesh_detail::MeshData;

namespace {

/// All meshes of the process, by hash. Leaked on purpose: meshes outlive every static object.
struct Table {
  std::mutex mutex;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<const MeshData>> meshes;
};

Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

void check_names(std::span<const std::string> names, const Dims& shape) {
  if (static_cast<int>(names.size()) != shape.size()) {
    fail_input(
        {.thing = "mesh",
         .wrong = fmt::format("{} axis names for a shape of {} sizes (names {}, shape {})",
                              names.size(), shape.size(), fmt::join(names, ", "), to_string(shape)),
         .advice = "give each axis one name"});
  }
  if (names.empty()) {
    fail_input({.thing = "mesh",
                .wrong = "it has no axis",
                .advice = "give at least one, such as axes [\"data\"] and shape [1]"});
  }
  for (int i = 0; i < shape.size(); ++i) {
    const std::string& name = names[static_cast<std::size_t>(i)];
    if (name.empty()) {
      fail_input({.thing = "mesh",
                  .wrong = fmt::format("the name of axis {} is empty", i),
                  .advice = "name every axis"});
    }
    if (std::find(names.begin(), names.begin() + i, name) != names.begin() + i) {
      fail_input({.thing = "mesh",
                  .wrong = fmt::format("two axes are named '{}'", name),
                  .advice = "names must differ"});
    }
    if (shape[i] < 1) {
      fail_input({.thing = "mesh",
                  .wrong = fmt::format("axis '{}' has size {}", name, shape[i]),
                  .expected = "at least 1"});
    }
  }
}

/// The product of the sizes, which must fit in an int.
std::int64_t count_ranks(const Dims& shape) {
  constexpr std::int64_t most = 1 << 20;  // a mesh holds its ranks, and a file may name any number
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size > most / count) {
      fail_input({.thing = "mesh",
                  .wrong = fmt::format("shape {} has more than {} ranks", to_string(shape), most)});
    }
    count *= size;
  }
  return count;
}

void check_ranks(std::span<const int> ranks, const Dims& shape, std::int64_t count) {
  if (static_cast<std::int64_t>(ranks.size()) != count) {
    fail_input(
        {.thing = "mesh",
         .wrong = fmt::format("shape {} needs {}", to_string(shape), count_text(count, "rank")),
         .got = fmt::format("{}", ranks.size()),
         .advice = "the sizes must multiply to the number of ranks"});
  }
  std::vector<int> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0) {
    fail_input({.thing = "mesh", .wrong = fmt::format("rank {} is below 0", sorted.front())});
  }
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    fail_input({.thing = "mesh",
                .wrong = fmt::format("rank {} appears twice", *twice),
                .advice = "ranks must differ"});
  }
}

std::uint64_t hash_of(const MeshData& data) {
  std::uint64_t h = 0x6d657368;
  for (const std::string& name : data.names) {
    for (const char c : name) {
      h = hash_combine(h, static_cast<unsigned char>(c));
    }
    h = hash_combine(h, 256);  // ends a name: {"ab"} and {"a", "b"} differ
  }
  for (const std::int64_t size : data.shape) {
    h = hash_combine(h, static_cast<std::uint64_t>(size));
  }
  if (!data.identity) {
    for (const int rank : data.ranks) {
      h = hash_combine(h, static_cast<std::uint64_t>(rank));
    }
  }
  return h;
}

bool same_content(const MeshData& a, const MeshData& b) {
  return a.names == b.names && a.shape == b.shape && a.ranks == b.ranks;
}

/// Fills what follows from names, shape and ranks but only new meshes need.
void derive(MeshData& data) {
  const int ndim = data.shape.size();
  const std::size_t count = data.ranks.size();
  if (!data.identity) {
    data.positions.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      data.positions.emplace_back(data.ranks[i], static_cast<int>(i));
    }
    std::sort(data.positions.begin(), data.positions.end());
  }
  data.groups.resize(static_cast<std::size_t>(ndim));
  for (int axis = 0; axis < ndim; ++axis) {
    // Positions are (before, axis, after), groups (before, after, axis).
    const auto size = static_cast<std::size_t>(data.shape[axis]);
    const auto after = static_cast<std::size_t>(data.strides[axis]);
    std::vector<int>& groups = data.groups[static_cast<std::size_t>(axis)];
    groups.resize(count);
    for (std::size_t p = 0; p < count; ++p) {
      const std::size_t group = p / (after * size) * after + p % after;
      groups[group * size + p / after % size] = data.ranks[p];
    }
  }
}

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

DeviceMesh DeviceMesh::make(std::vector<std::string> axis_names, const Dims& shape,
                            std::vector<int> ranks) {
  check_names(axis_names, shape);
  const std::int64_t count = count_ranks(shape);
  if (ranks.empty()) {
    ranks.resize(static_cast<std::size_t>(count));
    std::iota(ranks.begin(), ranks.end(), 0);
  } else {
    check_ranks(ranks, shape, count);
  }
  auto data = std::make_unique<MeshData>();
  data->names = std::move(axis_names);
  data->shape = shape;
  data->strides = contiguous_strides(shape);
  data->ranks = std::move(ranks);
  data->identity = data->ranks.front() == 0 && data->ranks.back() == count - 1 &&
                   std::is_sorted(data->ranks.begin(), data->ranks.end());
  data->hash = hash_of(*data);

  Table& t = table();
  const std::lock_guard lock(t.mutex);
  const auto [first, last] = t.meshes.equal_range(data->hash);
  for (auto it = first; it != last; ++it) {
    if (same_content(*it->second, *data)) {
      return DeviceMesh(it->second.get());
    }
  }
  derive(*data);
  data->id = static_cast<std::uint32_t>(t.meshes.size());
  return DeviceMesh(t.meshes.emplace(data->hash, std::move(data))->second.get());
}

std::optional<int> DeviceMesh::find_axis(std::string_view name) const {
  const auto it = std::find(data_->names.begin(), data_->names.end(), name);
  if (it == data_->names.end()) {
    return std::nullopt;
  }
  return static_cast<int>(it - data_->names.begin());
}

int DeviceMesh::axis_index(std::string_view name) const {
  const std::optional<int> axis = find_axis(name);
  if (!axis) {
    fail_input({.thing = "mesh",
                .wrong = fmt::format("it has no axis '{}' (its axes are {}){}", name,
                                     join_words(data_->names), did_you_mean(name, data_->names))});
  }
  return *axis;
}

std::string to_string(const DeviceMesh& mesh) {
  if (!mesh) {
    return "mesh()";
  }
  std::string text = "mesh(";
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    text +=
        fmt::format("{}{}={}", axis > 0 ? ", " : "", mesh.axis_name(axis), mesh.axis_size(axis));
  }
  text += ")";
  const std::span<const int> ranks = mesh.ranks();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] != static_cast<int>(i)) {
      return text + fmt::format(" of ranks {}", fmt::join(ranks, " "));
    }
  }
  return text;
}

namespace {

[[noreturn]] void not_a_mesh(std::string_view text) {
  fail_input({.thing = "mesh",
              .wrong = fmt::format("'{}' is not a mesh", shown(text)),
              .expected = "the form \"mesh(shard=2, tensor=2)\", with \" of ranks 4 5 6 7\" after "
                          "it where they are not 0, 1, ..."});
}

std::int64_t number_in_mesh(std::string_view digits, std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0 ||
      value > std::numeric_limits<int>::max()) {
    not_a_mesh(text);
  }
  return value;
}

/// The part before `separator`, which is taken off.
std::string_view take_until(std::string_view& rest, std::string_view separator) {
  const auto at = rest.find(separator);
  const std::string_view part = rest.substr(0, at);
  rest.remove_prefix(at == std::string_view::npos ? rest.size() : at + separator.size());
  return part;
}

}  // namespace

DeviceMesh DeviceMesh::parse(std::string_view text) {
  constexpr std::string_view begin = "mesh(";
  constexpr std::string_view before_ranks = " of ranks ";
  const auto end = text.find(')');
  if (!text.starts_with(begin) || end == std::string_view::npos) {
    not_a_mesh(text);
  }
  std::vector<std::string> names;
  Dims shape;
  for (std::string_view axes = text.substr(begin.size(), end - begin.size()); !axes.empty();) {
    std::string_view axis = take_until(axes, ", ");
    const std::string_view name = take_until(axis, "=");
    if (shape.size() == max_dims) {
      not_a_mesh(text);
    }
    shape.push_back(number_in_mesh(axis, text));
    names.emplace_back(name);
  }
  std::vector<int> ranks;
  std::string_view rest = text.substr(end + 1);
  if (!rest.empty()) {
    if (!rest.starts_with(before_ranks)) {
      not_a_mesh(text);
    }
    rest.remove_prefix(before_ranks.size());
    while (!rest.empty()) {
      ranks.push_back(static_cast<int>(number_in_mesh(take_until(rest, " "), text)));
    }
  }
  return make(std::move(names), shape, std::move(ranks));
}

// Ranks, coordinates, and the ranks that share coordinates.

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
