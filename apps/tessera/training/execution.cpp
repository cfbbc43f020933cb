#include <string>
#include <utility>
#include <vector>

#include "config/check.hpp"
#include "config/config.hpp"

import tessera.base;
import tessera.graph;

#include "training/execution.hpp"

namespace tessera::app {

graph::ExecutionOptions execution_of(const GraphConfig& graph) {
  std::vector<graph::Transform> transforms;
  for (const std::string& name : graph.transforms) {
    transforms.push_back(graph::find_transform(name));
  }
  return {.executor = graph.executor,
          .passes = graph.passes,
          .memory_budget = bytes_of_text(graph.memory_budget).value_or(0),
          .transforms = std::move(transforms),
          .dump = graph.dump,
          .across_steps = graph.across_steps};
}

}  // namespace tessera::app
