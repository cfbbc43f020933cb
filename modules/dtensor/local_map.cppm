export module tessera.dtensor:local_map;

import tessera.base;
import tessera.placement;
import tessera.tensor;

export namespace tessera {

/// A function of this rank's local parts, which are plain tensors; it may communicate explicitly.
using LocalFunction = std::function<Tensors(std::span<const Tensor> locals)>;

/// The layouts of a function's inputs and results. An empty list, or an undefined Layout in a list,
/// makes no statement about the tensor.
struct LocalMapOptions {
  /// The required layout of each input.
  std::vector<Layout> in = {};
  /// The layout of each result. Results without a layout stay plain tensors.
  std::vector<Layout> out = {};
  /// The layout of the gradient of each input, as for to_local().
  std::vector<Layout> in_gradients = {};
  /// Global shapes of the results; required for sharded results if an input is sharded unevenly.
  std::vector<Dims> out_shapes = {};
  /// Redistribute inputs whose layout differs from `in`; otherwise they are an error.
  bool redistribute_inputs = false;
};

/// Calls `function` with the local parts of `inputs` (plain inputs as they are) and makes its
/// results distributed. Use it for code without a placement rule: the caller is responsible for the
/// layouts. It has a gradient. Errors: an input has another layout than stated; a list is neither
/// empty nor has one entry per tensor; an error of to_local() or from_local(), with the number of
/// the input or result.
Tensors local_map(const LocalFunction& function, std::span<const Tensor> inputs,
                  const LocalMapOptions& options);

}  // namespace tessera
