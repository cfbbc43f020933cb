module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>
module tessera.placement;

import tessera.base;
import tessera.mesh;

// The order in which axes cut one tensor dim, and PyTorch's way to write it: an axis that cuts
// after larger axes did is StridedShard(dim, product of those axes' sizes).
namespace tessera {

namespace layout_detail {

std::vector<int> order_of_strided(const DeviceMesh& mesh, std::span<const Placement> placements) {
  std::vector<std::vector<int>> orders(max_dims);  // of each tensor dim
  for (int axis = static_cast<int>(placements.size()) - 1; axis >= 0; --axis) {
    const Placement placement = placements[static_cast<std::size_t>(axis)];
    if (placement.dim() < 0) {
      continue;
    }
    // All axes in `order` are larger: this one follows those that multiply to its factor.
    std::vector<int>& order = orders[static_cast<std::size_t>(placement.dim())];
    std::int64_t pieces = 1;
    std::size_t place = 0;
    while (pieces < placement.split_factor() && place < order.size()) {
      pieces *= mesh.axis_size(order[place++]);
    }
    if (pieces != placement.split_factor()) {
      fail_input(
          {.thing = "layout",
           .wrong = fmt::format("{} on axis '{}' of {} has no meaning in {}", to_string(placement),
                                mesh.axis_name(axis), to_string(mesh), to_string(placements)),
           .advice = fmt::format(
               "the split factor must be the product of the sizes of later axes that shard dim {}",
               placement.dim())});
    }
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(place), axis);
  }
  std::vector<int> all;
  for (const std::vector<int>& order : orders) {
    all.insert(all.end(), order.begin(), order.end());
  }
  return all;
}

std::vector<int> canonical_order(const DeviceMesh& mesh, std::span<const int> axes) {
  std::vector<int> order;
  std::vector<int> idle;  // axes of one rank
  for (const int axis : axes) {
    (mesh.axis_size(axis) == 1 ? idle : order).push_back(axis);
  }
  std::sort(idle.begin(), idle.end());
  for (const int axis : idle) {
    order.insert(
        std::find_if(order.begin(), order.end(), [axis](int other) { return other > axis; }), axis);
  }
  return order;
}

}  // namespace layout_detail

std::vector<Placement> Layout::strided_placements() const {
  std::vector<Placement> form(placements().begin(), placements().end());
  for (int axis = 0; axis < ndim(); ++axis) {
    Placement& placement = form[static_cast<std::size_t>(axis)];
    if (!placement.is_shard()) {
      continue;
    }
    int factor = 1;
    for (const int other : axes_sharding(placement.dim())) {
      if (other == axis) {
        break;
      }
      factor *= other > axis ? mesh().axis_size(other) : 1;
    }
    if (factor > 1) {
      placement = StridedShard(placement.dim(), factor);
    }
  }
  return form;
}

}  // namespace tessera
