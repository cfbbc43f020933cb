export module tessera.dtensor:local_map;

import tessera.base;
import tessera.placement;
import tessera.tensor;

export namespace tessera {

/// Computes with this rank's parts as with any plain tensors; it may communicate by itself.
using LocalFunction = std::function<Tensors(std::span<const Tensor> locals)>;

/// What local_map is told of a function. An empty list, or an undefined Layout in one, says nothing
/// of that tensor.
struct LocalMapOptions {
  /// Of the inputs: the layout in which the function needs each.
  std::vector<Layout> in = {};
  /// Of the results: the layout that their local parts make up. Results without one stay plain.
  std::vector<Layout> out = {};
  /// Of the inputs: the layout in which the function's gradient comes out, as to_local() takes it.
  std::vector<Layout> in_gradients = {};
  /// Global shapes of the results; needed for sharded ones when an input is cut unevenly.
  std::vector<Dims> out_shapes = {};
  /// Inputs in another layout than `in` says are redistributed; otherwise they are an error.
  bool redistribute_inputs = false;
};

/// Calls `function` with the local parts of `inputs` (plain ones as they are), and makes its
/// results distributed. This is the way in for what has no placement rule: the caller answers for
/// the layouts. Gradients flow through. Errors: an input in another layout than stated; a list that
/// is neither empty nor one entry for each tensor; what to_local() and from_local() refuse, with
/// the number of the input or result.
Tensors local_map(const LocalFunction& function, std::span<const Tensor> inputs,
                  const LocalMapOptions& options);

}  // namespace tessera
