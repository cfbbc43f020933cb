module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
module tessera.tensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;

namespace tessera {
namespace {

struct Table {
  static constexpr std::size_t room_at_first = 1 << 12;

  std::mutex mutex;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<const Spec>> specs;
  std::size_t room = room_at_first;  // how many there may be before those not held are dropped
};

Table& table() {
  static auto* instance = new Table;  // leaked on purpose: it outlives every static object
  return *instance;
}

}  // namespace

SpecHandle Spec::make(const Layout& layout, const Dims& shape, DType dtype) {
  std::uint64_t hash =
      hash_combine(static_cast<std::uint64_t>(layout.hash()), static_cast<std::uint64_t>(dtype));
  for (const std::int64_t extent : shape) {
    hash = hash_combine(hash, static_cast<std::uint64_t>(extent));
  }
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  const auto [first, last] = t.specs.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const Spec& spec = *it->second;
    if (spec.layout == layout && spec.shape == shape && spec.dtype == dtype) {
      return spec.handle();
    }
  }
  checked_product(shape, "distributed tensor");
  if (t.specs.size() >= t.room) {
    // Only this function makes the first handle of a Spec, and it has the lock.
    std::erase_if(t.specs, [](const auto& entry) { return !entry.second->is_held(); });
    t.room = std::max(Table::room_at_first, 2 * t.specs.size());
  }
  std::unique_ptr<const Spec> fresh(new Spec(layout, shape, dtype));
  return t.specs.emplace(hash, std::move(fresh))->second->handle();
}

std::size_t Spec::kept() {
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  return t.specs.size();
}

Dims my_coordinates(const DeviceMesh& mesh) {
  const std::optional<Dims> coordinates = mesh.coordinates_of(current_rank());
  if (!coordinates) {
    fail({.thing = "tensor",
          .wrong = fmt::format("rank {} is not in the mesh {}", current_rank(),
                               tessera::to_string(mesh)),
          .advice = "only the mesh's own ranks hold parts of its tensors"});
  }
  return *coordinates;
}

Dims local_shape(const Spec& spec) {
  return local_shape(spec.shape, spec.layout, my_coordinates(spec.layout.mesh()));
}

Dims local_offset(const Spec& spec) {
  return local_offset(spec.shape, spec.layout, my_coordinates(spec.layout.mesh()));
}

std::string to_string(const Spec& spec) {
  return fmt::format("{}{} {}", name_of(spec.dtype), to_string(spec.shape), to_string(spec.layout));
}

std::string text_of(const Spec& spec) {
  return fmt::format("{} on {}", to_string(spec), to_string(spec.layout.mesh()));
}

SpecHandle Spec::parse(std::string_view text) {
  const auto shape_begin = text.find('[');
  const auto shape_end = text.find("] [");
  const auto on = text.find(" on mesh(");
  const std::optional<DType> dtype = dtype_from_name(text.substr(0, shape_begin));
  if (shape_end == std::string_view::npos || on == std::string_view::npos ||
      shape_begin > shape_end || shape_end > on || !dtype) {
    fail_input(
        {.thing = "spec",
         .wrong = fmt::format("'{}' is not a spec", text),
         .expected = "the form \"f32[8, 4] [Shard(0), Replicate] on mesh(shard=2, tensor=2)\""});
  }
  const DeviceMesh mesh = DeviceMesh::parse(text.substr(on + 4));
  const ArgumentValue shape = value_from_text(
      ArgumentType<Dims>::name, text.substr(shape_begin, shape_end + 1 - shape_begin));
  return make(Layout::parse(mesh, text.substr(shape_end + 2, on - shape_end - 2)),
              ArgumentType<Dims>::from_value(shape), *dtype);
}

}  // namespace tessera
