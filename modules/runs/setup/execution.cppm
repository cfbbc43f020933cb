export module tessera.runs:execution;

import tessera.base;
import tessera.graph;
import tessera.train;
import :rates;
import :spec;

// How a run's captured steps are executed.

export namespace tessera::runs {

/// Entries of graph.transforms that replace modules.
std::vector<Override> overrides_of(const GraphConfig& graph);

/// With the transformations, those of overrides too. `rates`: what a step with a budget costs; see
/// rates_of. Errors: see graph::find_transform, find_override and memory_elsewhere.
graph::ExecutionOptions execution_of(const GraphConfig& graph, const StepRates& rates = {});

}  // namespace tessera::runs
