export module tessera.runs:trial;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.train;
import :device_fit;
import :training_run;

// Training steps tried on the meta device, before ranks are started.

export namespace tessera::runs {

/// What steps on the meta device tell of a run.
struct Trial {
  /// A whole step in the state that training settles in: forward and backward of all micro-batches,
  /// gradient reduction, norm and optimizer. `memory` has what this rank will hold at the peak of
  /// each category and in all; temporary memory inside of operators is not in it.
  Account account;
  /// The part of it that is memory which the ranks share.
  std::size_t shared_bytes = 0;
  /// A rank's sequences of a step, and how many of them are computed at once.
  std::int64_t rows = 0;
  std::int64_t micro = 0;
  std::int64_t parts = 1;  // ranks along the batch
  /// Of the device; where parts of the step run on other devices (bytes_elsewhere), not all are.
  MissingKernels missing_kernels = {};
  /// Bytes that this rank keeps in other places than the device's memory.
  std::size_t bytes_elsewhere = 0;
  /// What the training stores of this rank's part of the trained parameters.
  struct StoredBytes {
    std::int64_t elements = 0;
    std::int64_t values = 0;     // bytes
    std::int64_t gradients = 0;  // bytes
    std::int64_t state = 0;      // bytes, the optimizer's
  };
  StoredBytes stored = {};
  /// Of a model in stages, one for each coordinate of their axis. What the trial says otherwise of
  /// a rank is of the one that needs most memory.
  struct StageMemory {
    int rank = 0;             // one of the ranks there
    std::string stages = {};  // "stage 0 (model.embed_tokens to model.layers.1)"
    MemoryStatistics memory = {};
  };
  std::vector<StageMemory> places = {};
  std::vector<parallel::StyleSummary> styles = {};
  std::string objective = {};          // Objective::text
  std::int64_t parameters = 0;         // elements of the whole model
  std::int64_t frozen_parameters = 0;  // of them
  std::size_t kept_bytes = 0;          // see Trainer::kept_bytes
};

/// Steps of the trainer on the meta device, as this process' rank, and of a model in stages as one
/// rank of each place along their axis: every operator gets its layouts,
/// nothing is computed and nobody communicates. What a training step would find wrong with the
/// styles is found here. Errors (input): a batch that the plan does not divide; layouts that do not
/// fit; module, operator and the entries at work are named.
Trial try_step(const Run& run);
Trial try_step(const Run& run, const StepSetup& setup);

/// What the stages of the run's model tell each other in a step, from steps of all of them on the
/// meta device, with replaced modules. Null: the model is not in stages.
std::shared_ptr<StageStates> stage_states(const Run& run, StepSetup setup);

/// Seconds in which the host makes the calls of an eager step besides kernels and collectives: the
/// shortest of some steps of the setup, as rank 0 on the meta device, where neither takes time.
double host_seconds(const Run& run, StepSetup setup);

/// The program of a rank's step, recorded on the meta device: of the whole batch, in the state that
/// training settles in. Values that the host reads within the step are 1 in it (reads_values).
/// Errors: see try_step; what cannot be recorded.
Program capture_step(const Run& run, int rank = 0);
Program capture_step(const Run& run, const StepSetup& setup, int rank = 0);
/// The step before passes, budget and changes of programs, with replaced modules.
Program recorded_step(const Run& run, const StepSetup& setup, int rank);
/// The rank's program of one above distribution; what lowering books is in no account of the run.
Program lowered(const Program& placed, int rank);

/// The evaluation of one micro-batch, recorded in the same way. Errors: see capture_step.
void capture_evaluation(const Run& run, const StepSetup& setup, OneRank& into);

/// One of the programs that leave the step's update to the next one: "first", "middle", "last",
/// "update" (see graph::AcrossSteps); "": the whole step. Errors as above.
Program capture_part(const Run& run, int rank, const std::string& part);

/// Gathers that a step makes.
int gathers_in(const Program& program);
bool keeps_gathers(const GraphConfig& graph);
/// How many gathers the pass keep_gathers spares in `program`, which is rank 0's of the run.
int kept_gathers(const Run& run, const Program& program);
/// Run::kept_gathers; where it is to follow from rank 0's program, that is captured for it. Errors:
/// see capture_step.
int kept_gathers(const Run& run);

}  // namespace tessera::runs
