import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.dtensor;
import tessera.nn;
import tessera.parallel;

#include "training/loss.hpp"

namespace tessera::app {

Tensor loss_sum(nn::LlamaForCausalLM& model, const parallel::ParallelPlan& plan,
                const Tensor& inputs, const Tensor& targets) {
  const Layout layout = plan.batch_layout();
  const Dims shape = {inputs.size(0) * plan.batch_parts(), inputs.size(1)};
  const Tensor logits = model(from_local(inputs, layout, shape));
  return model.loss()({logits, from_local(targets, layout, shape)})[0];
}

}  // namespace tessera::app
