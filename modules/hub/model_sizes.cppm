export module tessera.hub:model_sizes;

import tessera.base;
import tessera.nn;
import tessera.models;
import :model_shape;

// A ModelShape as the module `models` has it.

export namespace tessera::hub {

/// Errors (input): there is no such family.
const models::ModelFamily& family_of(const ModelShape& shape);
models::ModelSizes sizes_of(const ModelShape& shape);
/// The shape of these complete sizes. Error (input) that begins with `name`: the number of
/// parameters cannot be counted.
ModelShape shape_of(const std::string& family, const models::ModelSizes& sizes,
                    const std::string& name);

/// A model on the meta device.
std::shared_ptr<nn::LanguageModel> make_model(const ModelShape& shape, double dropout);

}  // namespace tessera::hub
