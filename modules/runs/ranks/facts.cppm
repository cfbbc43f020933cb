export module tessera.runs:facts;

import tessera.base;
import tessera.tensor;
import tessera.execute;
import tessera.train;
import :training_run;
import :mode;
import :trial;

// What is known of a run before its ranks start, as data.

export namespace tessera::runs {

/// A captured step.
struct CapturedFacts {
  std::size_t instructions = 0;
  std::int64_t needed = 0;         // bytes of a rank, of whichever of its programs needs most
  std::size_t kept_elsewhere = 0;  // bytes that a style keeps in other places
  std::int64_t pending = -1;  // bytes that are kept for the next step's update; -1: none is left
  std::int64_t values_in_files = 0;  // of graph.offload, and their bytes
  std::int64_t bytes_in_files = 0;
  int gathers = 0;  // that it has, of which so many are made
  int gathers_made = 0;
  std::optional<graph::CompiledKernels> kernels = {};
  std::string reads =
      {};  // what reads values on the host; empty: it is replayed from the first step on
};

/// Facts of a run, by which its ranks are started too.
struct Facts {
  Trial trial = {};                              // of a step
  std::optional<Layouts> layouts = {};           // with graph.mode: of the parameters
  std::vector<CapturedFacts> captured = {};      // one, or one for each place of stages
  std::size_t shared_bytes = 0;                  // memory that the ranks share, all ranks together
  std::size_t rank_bytes = 0;                    // what each rank has besides, all the time
  int kept_gathers = -1;                         // Run::kept_gathers, for the ranks
  std::shared_ptr<const OneRank> one_rank = {};  // Run::one_rank, for the ranks
  std::shared_ptr<StageStates> states = {};      // Run::states, for the ranks
};

/// Checks the whole run without communication: styles, patterns, placements, the division of the
/// batch, and the layouts of one step (try_step). Errors (input), each with the key: what is wrong
/// with them; a device has less memory than a step needs, or no kernel for one of its operators.
Facts facts_of(const Run& run);

}  // namespace tessera::runs
