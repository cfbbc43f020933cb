// How a run's captured steps are executed. Included after the imports of tessera.base and
// tessera.graph.
#pragma once
#include "config/config.hpp"

namespace tessera::app {

/// Errors: see graph::find_transform.
graph::ExecutionOptions execution_of(const GraphConfig& graph);

}  // namespace tessera::app
