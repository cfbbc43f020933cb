module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
module tessera.placement;

import tessera.base;
import tessera.mesh;

namespace tessera {

LocalPart local_part(const Dims& shape, const Layout& layout, const Dims& coordinates) {
  check_layout_fits(layout, shape.size(), "local part");
  require(coordinates.size() == layout.ndim(),
          "local part: not one coordinate for each mesh axis; pass the mesh's coordinates_of");
  LocalPart part{Dims::filled(shape.size(), 0), shape};
  for (int dim = 0; dim <= layout.top_dim(); ++dim) {
    ShardRange range{0, shape[dim]};
    for (const int axis : layout.axes_sharding(dim)) {
      range = chunk_of(range, layout.mesh().axis_size(axis), static_cast<int>(coordinates[axis]));
    }
    part.offset[dim] = range.begin;
    part.shape[dim] = range.length;
  }
  return part;
}

Dims local_shape(const Dims& shape, const Layout& layout, const Dims& coordinates) {
  return local_part(shape, layout, coordinates).shape;
}

Dims local_offset(const Dims& shape, const Layout& layout, const Dims& coordinates) {
  return local_part(shape, layout, coordinates).offset;
}

LocalPart local_part(const Dims& shape, const Layout& layout, int rank) {
  const std::optional<Dims> coordinates = layout.mesh().coordinates_of(rank);
  if (!coordinates) {
    fail({.thing = "local part",
          .wrong = fmt::format("rank {} is not in {}", rank, to_string(layout.mesh())),
          .advice = "only ranks of the mesh hold a part"});
  }
  return local_part(shape, layout, *coordinates);
}

std::optional<LocalPart> intersection(const LocalPart& a, const LocalPart& b) {
  LocalPart both = a;
  for (int dim = 0; dim < a.shape.size(); ++dim) {
    const std::int64_t begin = std::max(a.offset[dim], b.offset[dim]);
    const std::int64_t end = std::min(a.offset[dim] + a.shape[dim], b.offset[dim] + b.shape[dim]);
    if (end <= begin) {
      return std::nullopt;
    }
    both.offset[dim] = begin;
    both.shape[dim] = end - begin;
  }
  return both;
}

Dims padded_local_shape(const Dims& shape, const Layout& layout) {
  // The first coordinates always get full chunks.
  return local_shape(shape, layout, Dims::filled(layout.ndim(), 0));
}

bool shards_evenly(const Dims& shape, const Layout& layout) {
  check_layout_fits(layout, shape.size(), "local part");
  for (int dim = 0; dim <= layout.top_dim(); ++dim) {
    if (shape[dim] % layout.shard_count(dim) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace tessera
