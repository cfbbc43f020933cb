module tessera.runs;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.parallel;

namespace tessera::runs {
namespace {

/// This rank's rows as those of all ranks; undefined where there are none.
Tensor distributed(const Tensor& rows, const parallel::ParallelPlan& plan) {
  return rows ? plan.batch_of(rows) : rows;
}

nn::RowDocuments distributed(const nn::RowDocuments& documents,
                             const parallel::ParallelPlan& plan) {
  return {.first = distributed(documents.first, plan),
          .positions = distributed(documents.positions, plan)};
}

}  // namespace

Tensor loss_sum(nn::LanguageModel& model, const parallel::ParallelPlan& plan, const Tensor& inputs,
                const Tensor& targets, const nn::RowDocuments& documents) {
  return model.loss_sum(distributed(inputs, plan), distributed(targets, plan),
                        distributed(documents, plan));
}

Tensor hidden_states(nn::LanguageModel& model, const parallel::ParallelPlan& plan,
                     const Tensor& inputs, const nn::RowDocuments& documents) {
  return model.states(distributed(inputs, plan), distributed(documents, plan));
}

}  // namespace tessera::runs
