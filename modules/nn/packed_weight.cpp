module;
#include <span>
module tessera.nn;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::nn {

std::span<const PackedWeight> packed_weights_of(const Module& module) {
  return module.attached<PackedWeights>().weights;
}

Tensor first_values(const PackedWeight& weight) {
  const Layout layout = weight.layout();
  if (!layout) {
    return empty(weight.shape, DType::f32);
  }
  const SpecHandle spec = Spec::make(layout, weight.shape, DType::f32);
  return make_distributed(empty(local_shape(*spec), DType::f32), spec);
}

}  // namespace tessera::nn
