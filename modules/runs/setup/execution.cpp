module;
#include <string>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.execute;
import tessera.passes;
import tessera.graph;
import tessera.train;

namespace tessera::runs {

namespace {

std::vector<graph::Change> changes_of(const GraphConfig& graph) {
  std::vector<graph::Change> changes;
  for (const std::string& name : graph.transforms) {
    changes.push_back(graph::find_change(name));
  }
  return changes;
}

}  // namespace

std::vector<graph::Change> replacing_changes(const GraphConfig& graph) {
  std::vector<graph::Change> changes = changes_of(graph);
  std::erase_if(changes, [](const graph::Change& change) { return !change.replacement; });
  return changes;
}

graph::ExecutionOptions execution_of(const GraphConfig& graph, const StepRates& rates) {
  return {.executor = graph.executor,
          .device_graphs = graph.device_graphs,
          .passes = graph.passes,
          .memory_budget = bytes_of_text(graph.memory_budget).value_or(0),
          .elsewhere = memory_elsewhere(graph),
          .computing = {.flops = rates.flops, .bytes = rates.bytes},
          .offloading = {.stored = rates.stored, .fetched = rates.fetched},
          .transforms = changes_of(graph),
          .verify = graph.verify,
          .dump = graph.dump,
          .across_steps = graph.across_steps};
}

}  // namespace tessera::runs
