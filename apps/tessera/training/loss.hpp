// The loss of a batch, and a trial of the layouts in which it is computed.
// Included after the imports of tessera.{base,tensor,dtensor,nn,parallel}.
#pragma once
#include <cstdint>
#include <vector>

#include "config/config.hpp"

namespace tessera::app {

/// The SUM of the losses of this rank's rows divided by `tokens`: Partial along the axes that split
/// the batch. inputs and targets are local [rows, seq_len] (i64).
Tensor batch_loss(nn::LlamaForCausalLM& model, const parallel::ParallelPlan& plan,
                  const Tensor& inputs, const Tensor& targets, std::int64_t tokens);

/// Forward and backward of one micro-batch on the meta device, as this process' rank: every
/// operator is given its layouts, nothing is computed and nobody communicates. What a training step
/// would find wrong with the styles is found here, before ranks are started. The model is as the
/// plan left it, not materialised. Returns what would be communicated. Errors (input): layouts that
/// do not fit; module, operator and the entries at work are named.
std::vector<Communication> try_layouts(nn::LlamaForCausalLM& model,
                                       const parallel::ParallelPlan& plan, const Config& config);

}  // namespace tessera::app
