module tessera.app.run;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.dtensor;
import tessera.nn;
import tessera.parallel;

namespace tessera::app {

Tensor loss_sum(nn::LanguageModel& model, const parallel::ParallelPlan& plan, const Tensor& inputs,
                const Tensor& targets) {
  const Layout layout = plan.batch_layout();
  const Dims shape = {inputs.size(0) * plan.batch_parts(), inputs.size(1)};
  return model.loss_sum(from_local(inputs, layout, shape), from_local(targets, layout, shape));
}

}  // namespace tessera::app
