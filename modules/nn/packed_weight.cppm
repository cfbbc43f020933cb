export module tessera.nn:packed_weight;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :parameter;
import :tree;

export namespace tessera::nn {

/// A weight that a layer keeps in another form, in other parameters: codes and scales. Whoever has
/// first values for it (initialize(), a reader of files) makes a tensor of them and lets the layer
/// pack it, one weight after the other. So no rank holds more than its part of one of them.
struct PackedWeight {
  std::string name;  // of the weight within the module, as files have it
  Dims shape;
  Initialization initialization;
  /// Layout of the tensor of first values, which is f32; plain where it is undefined.
  std::function<Layout()> layout;
  /// Writes the layer's parameters. All ranks call it together.
  std::function<void(const Tensor& values)> pack;
};

/// What a layer that keeps weights in another form attaches to itself.
struct PackedWeights {
  std::vector<PackedWeight> weights;
};

/// Those of the module itself.
std::span<const PackedWeight> packed_weights_of(const Module& module);
/// A tensor for the first values of a packed weight, not initialised.
Tensor first_values(const PackedWeight& weight);

}  // namespace tessera::nn
