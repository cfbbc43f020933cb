export module tessera.app.run:checked_plan;

import tessera.tensor;
import tessera.train;
import tessera.app.base;
import tessera.app.setup;
import tessera.app.steps;

export namespace tessera::app {

/// Plan of the run before its ranks start.
struct CheckedPlan {
  std::vector<std::vector<std::string>> rows;    // for the table before the first step
  std::size_t shared_bytes = 0;                  // memory that the ranks share, all ranks together
  std::size_t rank_bytes = 0;                    // what each rank has besides, all the time
  Trial trial;                                   // of a step
  int kept_gathers = -1;                         // Run::kept_gathers, for the ranks
  std::shared_ptr<const OneRank> one_rank = {};  // Run::one_rank, for the ranks
  std::shared_ptr<PlannedStates> states = {};    // Run::states, for the ranks
};

/// Checks the whole plan without communication: styles, patterns, placements, the division of the
/// batch, and the layouts of one step (try_step).
CheckedPlan check_plan(const Run& run);

}  // namespace tessera::app
