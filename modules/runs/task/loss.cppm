export module tessera.runs:loss;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.parallel;

// The losses of a batch.

export namespace tessera::runs {

/// The SUM of the losses of this rank's rows: Partial along the axes that split the batch. inputs,
/// targets and the tensors of documents are local [rows, seq_len] (i64).
Tensor loss_sum(nn::LanguageModel& model, const parallel::ParallelPlan& plan, const Tensor& inputs,
                const Tensor& targets, const nn::RowDocuments& documents = {});
/// The hidden states of this rank's rows, of a stage that does not end the model (see
/// nn::LanguageModel::states).
Tensor hidden_states(nn::LanguageModel& model, const parallel::ParallelPlan& plan,
                     const Tensor& inputs, const nn::RowDocuments& documents = {});

}  // namespace tessera::runs
