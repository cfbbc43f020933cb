module tessera.nn;

import :whole_sums;
import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.dtensor;

namespace tessera::nn {

Tensor whole(const Tensor& x) {
  if (!x.is_distributed() || !x.layout().has_partial()) {
    return x;
  }
  Layout layout = x.layout();
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    if (layout.placement(axis).is_partial()) {
      layout = layout.with_placement(axis, Replicate());
    }
  }
  return redistribute(x, layout);
}

}  // namespace tessera::nn
