// How a run's captured steps are executed. Included after the imports of tessera.base and
// tessera.graph.
#pragma once
#include "config/config.hpp"
#include "training/rates.hpp"

namespace tessera::app {

/// `rates`: what a step with a budget costs; see rates_of. Errors: see graph::find_transform and
/// memory_elsewhere.
graph::ExecutionOptions execution_of(const GraphConfig& graph, const StepRates& rates = {});

}  // namespace tessera::app
