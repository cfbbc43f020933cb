// A ModelShape as the module `models` has it.
// Included after the imports of tessera.{base,models}.
#pragma once
#include "model_shape.hpp"

namespace tessera::app {

/// Errors (input): there is no such family.
const models::ModelFamily& family_of(const ModelShape& shape);
models::ModelSizes sizes_of(const ModelShape& shape);
/// The shape of these complete sizes. Error (input) that begins with `name`: the number of
/// parameters cannot be counted.
ModelShape shape_of(const std::string& family, const models::ModelSizes& sizes,
                    const std::string& name);

}  // namespace tessera::app
