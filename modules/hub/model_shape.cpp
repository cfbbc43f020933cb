module;
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;
import tessera.exported;

namespace tessera::hub {

bool operator==(const ModelShape& a, const ModelShape& b) = default;

const models::ModelFamily& family_of(const ModelShape& shape) {
  return shape.family == exported::program_family_name ? exported::program_family()
                                                       : models::model_family(shape.family);
}

models::ModelSizes sizes_of(const ModelShape& shape) {
  models::ModelSizes sizes{.vocab = shape.vocab, .max_positions = shape.max_positions};
  for (const auto& [name, value] : shape.values) {
    sizes.values.set(name, value);
  }
  return sizes;
}

ModelShape shape_of(const std::string& family, const models::ModelSizes& sizes,
                    const std::string& name) {
  ModelShape shape{.family = family,
                   .vocab = sizes.vocab,
                   .values = sizes.values.all(),
                   .max_positions = sizes.max_positions};
  const double all = family_of(shape).parameters(sizes);
  constexpr double limit = 0x1p50;
  if (all > limit) {
    fail_input({.thing = name,
                .wrong = fmt::format("the sizes make {:.3g} parameters", all),
                .expected = fmt::format("at most {:.3g}", limit)});
  }
  return shape;
}

std::int64_t ModelShape::parameters() const {
  return static_cast<std::int64_t>(family_of(*this).parameters(sizes_of(*this)));
}

std::string ModelShape::text() const {
  return fmt::format("{}, vocabulary {}", family_of(*this).describe(sizes_of(*this)), vocab);
}

}  // namespace tessera::hub
