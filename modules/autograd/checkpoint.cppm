export module tessera.autograd:checkpoint;

import tessera.base;
import tessera.tensor;

export namespace tessera {

using CheckpointedFunction = std::function<Tensors(std::span<const Tensor> inputs)>;

/// Calls `function(inputs)` without saving anything inside it; backward calls it again, with the
/// random streams where they stood, and differentiates that. Leaves that the function uses by
/// capture get their gradients too. Errors, in backward: the graph of the gradient is asked for
/// (create_graph).
Tensors checkpoint(const CheckpointedFunction& function, std::span<const Tensor> inputs);

}  // namespace tessera
