module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>
module tessera.placement;

import tessera.base;
import tessera.mesh;

namespace tessera {

using layout_detail::LayoutData;

namespace {

/// All layouts of the process, by hash. Leaked on purpose: they outlive every static object.
struct Table {
  std::mutex mutex;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<const LayoutData>> layouts;
};

Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

void check_placements(const DeviceMesh& mesh, std::span<const Placement> placements) {
  require(static_cast<bool>(mesh), "layout: there is no mesh; make one first");
  if (static_cast<int>(placements.size()) != mesh.ndim()) {
    fail_input({.thing = "layout",
                .wrong = fmt::format("{} placements for {} axes", placements.size(), mesh.ndim()),
                .got = fmt::format("{}, {}", to_string(placements), to_string(mesh)),
                .advice = "give one for each axis"});
  }
  for (const Placement placement : placements) {
    if ((placement.is_shard() || placement.is_strided_shard()) &&
        (placement.dim() < 0 || placement.dim() >= max_dims)) {
      fail_input({.thing = "layout",
                  .wrong = fmt::format("{} in {}", to_string(placement), to_string(placements)),
                  .expected = fmt::format("a dim from 0 to {}", max_dims - 1),
                  .advice = "count dims from the front"});
    }
  }
}

void check_order(const DeviceMesh& mesh, std::span<const Placement> placements,
                 std::span<const int> order) {
  std::vector<bool> seen(placements.size());
  for (const int axis : order) {
    if (axis < 0 || axis >= mesh.ndim() || seen[static_cast<std::size_t>(axis)]) {
      fail_input(
          {.thing = "layout",
           .wrong = fmt::format("shard order [{}] for {}", fmt::join(order, ", "), to_string(mesh)),
           .expected = fmt::format("distinct axes from 0 to {}", mesh.ndim() - 1)});
    }
    seen[static_cast<std::size_t>(axis)] = true;
  }
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (placements[static_cast<std::size_t>(axis)].is_shard() &&
        !seen[static_cast<std::size_t>(axis)]) {
      fail_input({.thing = "layout",
                  .wrong = fmt::format("shard order [{}] misses axis {} ('{}'), which has a shard",
                                       fmt::join(order, ", "), axis, mesh.axis_name(axis)),
                  .advice = "name every sharding axis"});
    }
  }
}

/// Fills the canonical order and what follows from the placements.
void derive(LayoutData& data, std::span<const int> order) {
  std::int8_t filled = 0;
  data.replicated = true;
  for (int axis = 0; axis < data.mesh.ndim(); ++axis) {
    const Placement placement = data.placements[static_cast<std::size_t>(axis)];
    data.partial |= placement.is_partial();
    data.replicated &= placement.is_replicate();
  }
  data.hash = data.mesh.hash();
  for (const Placement placement : data.placements) {
    data.hash = hash_combine(data.hash, placement.bits());
  }
  for (int dim = 0; dim < max_dims; ++dim) {
    data.begin[static_cast<std::size_t>(dim)] = filled;
    std::vector<int> axes;
    for (const int axis : order) {
      if (data.placements[static_cast<std::size_t>(axis)].is_shard(dim)) {
        axes.push_back(axis);
      }
    }
    axes = layout_detail::canonical_order(data.mesh, axes);
    data.default_order &= std::is_sorted(axes.begin(), axes.end());
    for (const int axis : axes) {
      data.order[static_cast<std::size_t>(filled++)] = static_cast<std::int8_t>(axis);
      data.top_dim = static_cast<std::int8_t>(dim);
      data.hash = hash_combine(data.hash, static_cast<std::uint64_t>(axis));
    }
  }
  data.begin[max_dims] = filled;
}

}  // namespace

Layout Layout::make(const DeviceMesh& mesh, std::span<const Placement> placements,
                    std::span<const int> order) {
  check_placements(mesh, placements);
  auto data = std::make_unique<LayoutData>();
  data->mesh = mesh;
  std::vector<int> axes(order.begin(), order.end());
  std::copy(placements.begin(), placements.end(), data->placements.begin());
  if (std::any_of(placements.begin(), placements.end(),
                  [](Placement p) { return p.is_strided_shard(); })) {
    if (!order.empty()) {
      fail_input({.thing = "layout",
                  .wrong = fmt::format("{} with a shard order besides", to_string(placements)),
                  .expected = "one of the two",
                  .advice = "write Shard and the order, or StridedShard alone"});
    }
    axes = layout_detail::order_of_strided(mesh, placements);
    for (Placement& placement : data->placements) {
      placement = placement.is_strided_shard() ? Shard(placement.dim()) : placement;
    }
  } else if (order.empty()) {
    axes.resize(placements.size());
    std::iota(axes.begin(), axes.end(), 0);
  }
  check_order(mesh, data->placements, axes);
  derive(*data, axes);

  Table& t = table();
  const std::lock_guard lock(t.mutex);
  const auto [first, last] = t.layouts.equal_range(data->hash);
  for (auto it = first; it != last; ++it) {
    const LayoutData& other = *it->second;
    if (other.mesh == mesh && other.placements == data->placements && other.order == data->order) {
      return Layout(&other);
    }
  }
  data->id = static_cast<std::uint32_t>(t.layouts.size());
  return Layout(t.layouts.emplace(data->hash, std::move(data))->second.get());
}

Layout Layout::make(const DeviceMesh& mesh, std::initializer_list<Placement> placements,
                    std::initializer_list<int> order) {
  return make(mesh, std::span(placements.begin(), placements.size()),
              std::span(order.begin(), order.size()));
}

Layout Layout::make(std::initializer_list<Placement> placements) {
  return make(require_mesh("layout"), std::span(placements.begin(), placements.size()));
}

Layout Layout::replicated(const DeviceMesh& mesh) {
  require(static_cast<bool>(mesh), "layout: there is no mesh; make one first");
  return make(mesh, std::vector<Placement>(static_cast<std::size_t>(mesh.ndim())));
}

Layout Layout::parse(const DeviceMesh& mesh, std::string_view text) {
  return make(mesh, parse_placements(text));
}

int Layout::shard_count(int dim) const {
  int product = 1;
  for (const int axis : axes_sharding(dim)) {
    product *= mesh().axis_size(axis);
  }
  return product;
}

bool Layout::is_innermost(int axis) const {
  if (!placement(axis).is_shard()) {
    return false;
  }
  const std::span<const std::int8_t> axes = axes_sharding(placement(axis).dim());
  for (auto it = axes.rbegin(); it != axes.rend(); ++it) {
    if (*it == axis) {
      return true;
    }
    if (mesh().axis_size(*it) > 1) {
      return false;
    }
  }
  return false;
}

Layout Layout::with_placement(int axis, Placement changed) const {
  if (changed == placement(axis)) {
    return *this;
  }
  std::vector<Placement> all(placements().begin(), placements().end());
  all[static_cast<std::size_t>(axis)] = changed;
  std::vector<int> order;
  for (int i = 0; i < data_->begin[max_dims]; ++i) {
    const int other = data_->order[static_cast<std::size_t>(i)];
    if (other != axis) {
      order.push_back(other);
    }
  }
  order.push_back(axis);
  return make(mesh(), all, order);
}

std::string to_string(const Layout& layout) {
  return layout ? to_string(layout.strided_placements()) : "no layout";
}

void check_layout_fits(const Layout& layout, int tensor_ndim, std::string_view what) {
  if (layout.top_dim() >= tensor_ndim) {
    fail_input(
        {.thing = std::string(what),
         .wrong = fmt::format("layout {} shards dim {} of a tensor with {}", to_string(layout),
                              layout.top_dim(), count_text(tensor_ndim, "dim")),
         .advice = "shard a dim that it has"});
  }
}

}  // namespace tessera
