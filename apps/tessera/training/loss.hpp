// The loss of a batch.
// Included after the imports of tessera.{tensor,nn,parallel}.
#pragma once
#include <cstdint>

namespace tessera::app {

/// The SUM of the losses of this rank's rows divided by `tokens`: Partial along the axes that split
/// the batch. inputs and targets are local [rows, seq_len] (i64).
Tensor batch_loss(nn::LlamaForCausalLM& model, const parallel::ParallelPlan& plan,
                  const Tensor& inputs, const Tensor& targets, std::int64_t tokens);

}  // namespace tessera::app
