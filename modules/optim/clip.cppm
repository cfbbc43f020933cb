export module tessera.optim:clip;

import tessera.base;
import tessera.tensor;
import tessera.nn;

export namespace tessera::optim {

/// The 2-norm over the gradients of all parameters together, whatever their layouts: each element
/// counts once. The result is the same on every rank; the sum is in double. Communicates a few
/// scalars.
double global_gradient_norm(std::span<const nn::ParameterPointer> parameters);

/// Its square as a local tensor (f64, no dims): what a recorded step computes.
Tensor squared_gradient_norm(std::span<const nn::ParameterPointer> parameters);

/// What gradients must be multiplied by: min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0 (no
/// clipping).
double clip_factor(double norm, double max_norm);

}  // namespace tessera::optim
