module tessera.app.run;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.dtensor;
import tessera.nn;
import tessera.parallel;

namespace tessera::app {
namespace {

/// Local rows [rows, seq_len] of all ranks as one tensor; undefined where there are none.
Tensor distributed(const Tensor& rows, const parallel::ParallelPlan& plan) {
  return rows ? from_local(rows, plan.batch_layout(),
                           Dims{rows.size(0) * plan.batch_parts(), rows.size(1)})
              : rows;
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

}  // namespace tessera::app
