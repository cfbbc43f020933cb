export module tessera.autograd:checkpoint;

import tessera.base;
import tessera.tensor;

export namespace tessera {

/// A function that checkpoint() calls again in backward.
using CheckpointedFunction = std::function<Tensors(std::span<const Tensor> inputs)>;

/// Calls `function(inputs)` without saving anything inside it; backward calls it again, with the
/// random streams as they were, and differentiates that. Tensors from outside that the function
/// uses (its parameters) get their gradients as if it were recorded: hooks run once, gradients()
/// finds them. The function must use the same tensors in each call. Inside it grad_enabled() is
/// true, though the first call records nothing.
/// Errors, in backward: an input or a tensor from outside that needs a gradient was changed in
/// place; the second call uses others; the graph of the gradient is requested (create_graph).
Tensors checkpoint(const CheckpointedFunction& function, std::span<const Tensor> inputs);

}  // namespace tessera
