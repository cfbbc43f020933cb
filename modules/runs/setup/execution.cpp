module;
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.execute;
import tessera.graph;
import tessera.train;

namespace tessera::runs {

namespace {

bool is_override(const std::string& name) {
  const std::vector<std::string> names = override_names();
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

std::vector<Override> overrides_of(const GraphConfig& graph) {
  std::vector<Override> overrides;
  for (const std::string& name : graph.transforms) {
    if (is_override(name)) {
      overrides.push_back(find_override(name));
    }
  }
  return overrides;
}

graph::ExecutionOptions execution_of(const GraphConfig& graph, const StepRates& rates) {
  std::vector<graph::Transform> transforms;
  for (const std::string& name : graph.transforms) {
    transforms.push_back(is_override(name) ? find_override(name).as_transform()
                                           : graph::find_transform(name));
  }
  return {.executor = graph.executor,
          .device_graphs = graph.device_graphs,
          .passes = graph.passes,
          .memory_budget = bytes_of_text(graph.memory_budget).value_or(0),
          .elsewhere = memory_elsewhere(graph),
          .computing = {.flops = rates.flops, .bytes = rates.bytes},
          .offloading = {.stored = rates.stored, .fetched = rates.fetched},
          .transforms = std::move(transforms),
          .verify = graph.verify,
          .dump = graph.dump,
          .across_steps = graph.across_steps};
}

}  // namespace tessera::runs
