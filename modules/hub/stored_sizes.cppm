export module tessera.hub:stored_sizes;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.checkpoint;
import :model_shape;

// The sizes that a config.json claims against the tensors that are stored.

export namespace tessera::hub {

/// Compares every size of `shape` with the shapes stored under `prefix`, before anything is built
/// by them: the work depends on what is stored, not on what is claimed. Throws Error (input) that
/// lists the keys that differ; `name` begins it.
void check_stored_sizes(const ModelShape& shape, const TensorSource& stored,
                        const std::string& prefix, const std::string& name);

/// The type of an exported file is that of the first stored tensor, where config.json does not say.
void set_stored_type(ModelShape& shape, const TensorSource& stored);

/// The type that config.json calls so: "bfloat16", "float16", "float64"; otherwise f32.
DType type_named(std::string_view name);

}  // namespace tessera::hub
