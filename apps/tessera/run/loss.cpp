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
                const Tensor& targets, const nn::RowDocuments& documents) {
  const Dims shape = {inputs.size(0) * plan.batch_parts(), inputs.size(1)};
  const auto distributed = [&, layout = plan.batch_layout()](const Tensor& rows) {
    return rows ? from_local(rows, layout, shape) : rows;
  };
  return model.loss_sum(
      distributed(inputs), distributed(targets),
      {.first = distributed(documents.first), .positions = distributed(documents.positions)});
}

}  // namespace tessera::app
