export module tessera.runs:execution;

import tessera.base;
import tessera.passes;
import tessera.graph;
import tessera.train;
import :rates;
import :spec;

// How a run's captured steps are executed.

export namespace tessera::runs {

/// Entries of graph.transforms that replace modules.
std::vector<graph::Change> replacing_changes(const GraphConfig& graph);

/// With the changes of graph.transforms. `rates`: what a step with a budget costs; see rates_of.
/// Errors: see graph::find_change and memory_elsewhere.
graph::ExecutionOptions execution_of(const GraphConfig& graph, const StepRates& rates = {});

}  // namespace tessera::runs
