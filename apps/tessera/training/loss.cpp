#include <cstdint>

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.parallel;

#include "training/loss.hpp"

namespace tessera::app {

Tensor batch_loss(nn::LlamaForCausalLM& model, const parallel::ParallelPlan& plan,
                  const Tensor& inputs, const Tensor& targets, std::int64_t tokens) {
  const Layout layout = plan.batch_layout();
  const Dims shape = {inputs.size(0) * plan.batch_parts(), inputs.size(1)};
  const Tensor logits = model(from_local(inputs, layout, shape));
  const Tensor sum = model.loss()({logits, from_local(targets, layout, shape)})[0];
  return ops::mul_scalar(sum, 1.0 / static_cast<double>(tokens));
}

}  // namespace tessera::app
