// Modes of data parallelism: the step of one rank is captured, and placed on the mesh.
// Included after the imports that trainer.hpp needs, and tessera.{mesh,record,parallel}.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "training/trainer.hpp"

namespace tessera::app {

/// The step of one rank for the whole batch, and its evaluation; or the same as placed by a mode.
struct OneRank {
  Program step;
  std::optional<Program> evaluation = {};  // none: nothing is validated
};

bool has_mode(const Config& config);

/// The run of one rank that does the whole batch of a run with graph.mode: as many micro-batches.
Run one_rank_run(const Run& run);
/// Captured on the meta device. Errors (input): see capture_step; the host reads values within the
/// step.
std::shared_ptr<const OneRank> capture_one_rank(const Run& run);

/// Placed on the run's mesh by its mode, above distribution, as the calling rank. Errors (input):
/// see graph::data_parallel.
OneRank placed_on_mesh(const Run& run, const OneRank& one_rank);

/// The names of inputs of a placed program that are parameters and sharded.
std::vector<std::string> sharded_parameters(const Program& placed);

/// What the plan of a run applies: the entries of the config, or, with graph.mode, one that splits
/// the batch along all axes and gives the parameters the layouts of the placed program. `placed`:
/// null where layouts do not matter.
std::vector<parallel::StyleEntry> plan_entries(const Config& config, const Program* placed);

/// "fully_shard on 'data': 38 parameters are sharded, 5 replicated", for the table.
std::string mode_text(const Config& config, const Program& placed);

}  // namespace tessera::app
