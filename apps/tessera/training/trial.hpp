// A training step tried on the meta device, before ranks are started.
// Included after the imports of tessera.{base,tensor,dtensor,nn,parallel}.
#pragma once
#include <cstddef>
#include <vector>

#include "config/config.hpp"

namespace tessera::app {

struct Trial {
  /// What the step's last micro-batch communicates.
  std::vector<Communication> communications;
  /// What this rank will hold at the peak of each category and in all. Temporary memory inside of
  /// operators is not in it.
  MemoryStatistics memory;
  /// What of it is memory that the ranks share.
  std::size_t shared_bytes = 0;
};

/// One step on the meta device, as this process' rank: every operator gets its layouts, nothing is
/// computed and nobody communicates. What a training step would find wrong with the styles is found
/// here. The model is as the plan left it, not materialised; its parameters have meta gradients
/// afterwards. Errors (input): layouts that do not fit; module, operator and the entries at work
/// are named.
Trial try_step(nn::LlamaForCausalLM& model, const parallel::ParallelPlan& plan,
               const Config& config);

}  // namespace tessera::app
