module tessera.app.run;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.parallel;

namespace tessera::app {

Tensor loss_sum(nn::LanguageModel& model, const parallel::ParallelPlan& plan, const Tensor& inputs,
                const Tensor& targets, const nn::RowDocuments& documents) {
  const auto distributed = [&](const Tensor& rows) { return rows ? plan.batch_of(rows) : rows; };
  return model.loss_sum(
      distributed(inputs), distributed(targets),
      {.first = distributed(documents.first), .positions = distributed(documents.positions)});
}

}  // namespace tessera::app
