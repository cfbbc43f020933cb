// The losses of a batch.
// Included after the imports of tessera.{tensor,nn,parallel}.
#pragma once

namespace tessera::app {

/// The SUM of the losses of this rank's rows: Partial along the axes that split the batch. inputs
/// and targets are local [rows, seq_len] (i64).
Tensor loss_sum(nn::LanguageModel& model, const parallel::ParallelPlan& plan, const Tensor& inputs,
                const Tensor& targets);

}  // namespace tessera::app
