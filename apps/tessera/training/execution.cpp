#include <string>
#include <utility>
#include <vector>

#include "config/check.hpp"
#include "config/config.hpp"

import tessera.base;
import tessera.record;
import tessera.graph;

#include "training/execution.hpp"
#include "training/offload.hpp"

namespace tessera::app {

graph::ExecutionOptions execution_of(const GraphConfig& graph, const StepRates& rates) {
  std::vector<graph::Transform> transforms;
  for (const std::string& name : graph.transforms) {
    transforms.push_back(graph::find_transform(name));
  }
  return {.executor = graph.executor,
          .passes = graph.passes,
          .memory_budget = bytes_of_text(graph.memory_budget).value_or(0),
          .elsewhere = memory_elsewhere(graph),
          .computing = {.flops = rates.flops, .bytes = rates.bytes},
          .offloading = {.stored = rates.stored, .fetched = rates.fetched},
          .transforms = std::move(transforms),
          .dump = graph.dump};
}

}  // namespace tessera::app
