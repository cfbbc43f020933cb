// How a run's captured steps are executed. Included after the imports of tessera.base,
// tessera.graph and tessera.train.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "training/rates.hpp"

namespace tessera::app {

/// Error (input): there is no transformation or override of one of these names. None is loaded.
void check_changes(std::span<const std::string> names);

/// Of graph.transforms, those that replace modules.
std::vector<Override> overrides_of(const GraphConfig& graph);

/// With the transformations, those of overrides too. `rates`: what a step with a budget costs; see
/// rates_of. Errors: see graph::find_transform, find_override and memory_elsewhere.
graph::ExecutionOptions execution_of(const GraphConfig& graph, const StepRates& rates = {});

}  // namespace tessera::app
