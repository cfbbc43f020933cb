#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "config/check.hpp"
#include "config/config.hpp"

import tessera.base;
import tessera.execute;
import tessera.graph;
import tessera.train;

#include "training/execution.hpp"
#include "training/offload.hpp"

namespace tessera::app {

namespace {

bool is_override(const std::string& name) {
  const std::vector<std::string> names = override_names();
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

void check_changes(std::span<const std::string> names) {
  if (names.empty()) {
    return;
  }
  std::vector<std::string> known = graph::transform_names();
  std::ranges::copy(override_names(), std::back_inserter(known));
  std::ranges::sort(known);
  for (const std::string& name : names) {
    if (std::ranges::find(known, name) == known.end()) {
      const std::string nearest = nearest_name(name, known);
      fail_input({.thing = "transforms",
                  .wrong = fmt::format("there is no transformation or override '{}'", shown(name)),
                  .expected = known.empty() ? "" : fmt::format("one of {}", join_words(known)),
                  .advice = nearest.empty() ? "'tessera plugin list' shows the plugins"
                                            : fmt::format("did you mean '{}'?", nearest)});
    }
  }
}

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
          .passes = graph.passes,
          .memory_budget = bytes_of_text(graph.memory_budget).value_or(0),
          .elsewhere = memory_elsewhere(graph),
          .computing = {.flops = rates.flops, .bytes = rates.bytes},
          .offloading = {.stored = rates.stored, .fetched = rates.fetched},
          .transforms = std::move(transforms),
          .dump = graph.dump,
          .across_steps = graph.across_steps};
}

}  // namespace tessera::app
