export module tessera.hub:nf4;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.checkpoint;

// Weights that a layer keeps as 4-bit codes (see tessera.nf4).

export namespace tessera::hub {

/// The shape of the weight whose codes are the tensor MODULE.codes. Error (input): MODULE.codes,
/// .scales, .factors or .mean is missing, or has a shape or type that does not fit the others.
Dims nf4_shape(const TensorSource& from, const std::string& module);

/// Rows of the weight, in f32.
Tensor read_nf4(const TensorSource& from, const std::string& module, std::int64_t row,
                std::int64_t rows);

/// The ends of the names of the tensors in which a layer keeps a weight.
constexpr std::array<std::string_view, 4> nf4_parts = {"codes", "scales", "factors", "mean"};

/// These tensors of a weight with these values (f32, plain), by the ends of their names. They are
/// bit for bit those of the style QLoRA.
std::map<std::string, Tensor> pack_nf4(const Tensor& weight);

}  // namespace tessera::hub
