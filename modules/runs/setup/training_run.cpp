module;
#include <cstdint>
#include <memory>
#include <string>
module tessera.runs;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.graph;
import tessera.train;

namespace tessera::runs {

bool has_mode(const RunSpec& config) { return !config.graph.mode.empty(); }

StepSetup setup_of(const Run& run) {
  const RunSpec& config = run.config;
  StepSetup setup{.mesh = make_mesh(config),
                  .rows = {.all = config.train.batch, .micro = config.train.micro_rows()},
                  .by_mode = has_mode(config),
                  .one_rank = run.one_rank,
                  .captured = config.graph.capture,
                  .states = run.states,
                  .execution = execution_of(config.graph, run.rates)};
  setup.execution.kept_gathers = run.kept_gathers;
  if (config.train.device != "cpu") {
    setup.execution.kind = find_device(config.train.device).type;
  }
  return setup;
}

StepSetup one_rank_setup(const Run& run) {
  StepSetup one{.mesh = DeviceMesh::make({"rank"}, {1})};
  const std::int64_t ranks = run.config.ranks();
  one.rows = {.all = run.config.train.batch, .micro = run.config.train.micro_batch * ranks};
  one.parts = ranks;
  one.captured = true;
  one.execution = {.executor = "interpreter"};
  return one;
}

}  // namespace tessera::runs
