export module tessera.app.plan:stages;

import tessera.base;
import tessera.pipeline;
import tessera.app.base;
import tessera.runs;
import :planner;
import :report;
import :sums;

// A step of a model in stages in time.

export namespace tessera::app {

/// A step in which micro-batches go through stages.
struct StagedStep {
  pipeline::Schedule schedule = {};
  pipeline::Costs costs = {};  // seconds of a micro-batch in each stage
  pipeline::Simulation simulation = {};
  std::vector<double> rest = {};  // by rank of the axis: seconds after its last micro-batch
  /// That of the rank which computes longest; `seconds`: of the whole step.
  StepTimes times = {};
};

/// Whether a style divides the model, as the run's trial has found.
inline bool is_staged(const runs::Trial& trial) { return !trial.places.empty(); }

/// The step of each place along the axis of stages is taken on the meta device. The calls of each
/// forward and backward, and of what follows the last one, have the times of the planner's
/// kernels; collectives of a stage's ranks pass beside its kernels where the hardware overlaps
/// them. The schedule is then simulated with the means of each stage's micro-batches; between two
/// stages hidden states move. The step ends when the slowest rank has ended. Errors: those of
/// try_step.
StagedStep plan_stages(const runs::Run& run, const runs::Trial& trial, Planner& planner);

/// Rows and a table of it: the bubble, and each place with its stages, memory and times.
TableRows staged_rows(const StagedStep& step);
std::string staged_table(const StagedStep& step, const runs::Trial& trial);
/// planned_json, with the pipeline: its bubble, and the seconds of each stage and rank.
std::string staged_json(const ForecastRun& run, const StagedStep& step);

}  // namespace tessera::app
