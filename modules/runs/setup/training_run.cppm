export module tessera.runs:training_run;

import tessera.base;
import tessera.mesh;
import tessera.program;
import tessera.graph;
import tessera.checkpoint;
import tessera.train;
import :fingerprint;
import :ledger;
import :rates;
import :run_record;
import :spec;
import :task;

export namespace tessera::runs {

/// The step of one rank for the whole batch, and its evaluation; or the same as placed by a mode.
struct OneRank {
  Program step;
  std::optional<Program> evaluation = {};  // none: nothing is validated
};

/// Agreement of all ranks before they start. The config is constant after it was read.
struct Run {
  RunSpec config;
  std::shared_ptr<const Task> task = {};
  Fingerprint fingerprint = {};  // kept in checkpoints
  std::string base_hash = {};    // of model.from, where a checkpoint names it (hub::base_hash)
  int kept_gathers = -1;         // see graph::ExecutionOptions; -1: what rank 0 has room for
  std::shared_ptr<const OneRank> one_rank = {};  // with graph.mode; null: a Trainer captures it
  std::shared_ptr<StageStates> states = {};      // StepSetup::states; constant while ranks run
  StepRates rates = {};                          // measured once, for all ranks
  int launchers = 1;                             // machines, each of which starts its own ranks
};

/// Where a run begins.
struct StartPoint {
  std::optional<std::string> checkpoint = {};  // that it continues; none: a new run
  std::int64_t step = 0;                       // steps that are done
  std::string base_hash = {};                  // Run::base_hash, for the ranks
  std::vector<std::string> notes = {};         // what the user should know of it, a line each
  MemoryStateStore* kept = nullptr;  // where the state is kept after every step; null: nowhere
  bool from_kept = false;            // it continues from there, whatever checkpoint there is
  std::int64_t begun = 0;            // with `kept`: steps that were done when the run began
  std::string identity = {};         // see run_identity
  double time_begun = 0;             // by steady_seconds(): when the run was opened
  std::int64_t told = 0;  // the last step that the metrics file has of the run that is continued
  Session session = {};   // what the record of the run says of this start
  TimeBoard* board = nullptr;  // with `kept`: what the ranks book, for those that replace them
};

/// Whether graph.mode captures the step of one rank, and places it.
bool has_mode(const RunSpec& config);

/// Sequences of a step, on all ranks together.
struct StepRows {
  std::int64_t all = 0;
  std::int64_t micro = 0;  // of a rank's micro-batch; 0: all of the rank's at once
};

/// How a step is taken. A run's own follows from its config; trials, captures and modes take
/// others.
struct StepSetup {
  DeviceMesh mesh;
  StepRows rows = {};
  std::int64_t parts = 0;                        // StepBatch::parts
  bool by_mode = false;                          // graph.mode places it
  std::shared_ptr<const OneRank> one_rank = {};  // what is placed; null: it is captured
  bool captured = false;
  /// Of a model in stages: what its stages tell each other, as far as it is known before the step.
  std::shared_ptr<StageStates> states = {};
  graph::ExecutionOptions execution = {};
};

/// That of the config. Errors: see execution_of.
StepSetup setup_of(const Run& run);
/// The whole batch on one rank, as a mode places it: as many micro-batches, and nothing but
/// replaced modules change what is recorded.
StepSetup one_rank_setup(const Run& run);

}  // namespace tessera::runs
