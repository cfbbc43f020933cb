export module tessera.train:run;

import tessera.base;
import tessera.tensor;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :step;
import :checkpoints;
import :training;

export namespace tessera {

/// The whole training of a program's own model, fully sharded.
struct TrainingRun {
  /// Processes on this machine. Where another launcher (mpirun, srun, torchrun) has started the
  /// ranks, there are as many as it says.
  int ranks = 1;
  std::int64_t steps = 0;       // of all starts together
  std::int64_t rows = 0;        // of a step, on all ranks together
  std::int64_t micro_rows = 0;  // see StepBatch
  /// Tokens of a row: a step's loss is the mean over rows * row_tokens, which a schedule by tokens
  /// counts.
  std::int64_t row_tokens = 1;
  optim::Schedule schedule = {.lr = 1e-3};
  double max_norm = 1;  // of the gradients; 0: any
  std::uint64_t seed = 1;
  /// See CapturedSteps::set_enabled. The program is captured on the meta device before the first
  /// step.
  bool replay = false;
  graph::ExecutionOptions execution = {};
  parallel::FullyShardOptions sharding = {};
  /// Where checkpoints are saved, and the newest one is continued. Empty: nowhere.
  std::string folder = "checkpoints";
  std::int64_t save_every = 100;  // steps; there is always one at the end. 0: only at the end
  int keep = 3;                   // checkpoints; 0: all
  /// Training continues while a checkpoint is written; see RunCheckpoints.
  bool save_in_background = true;
  std::int64_t report_every = 10;  // steps between two lines of rank 0; 0: none
  /// The share of a step's time from which a rank for which the others wait is named in a warning;
  /// see Stragglers. 0: none is.
  double straggler_share = 0.1;

  /// The model, without memory (on the meta device); it need not have names yet.
  std::function<std::shared_ptr<nn::Module>()> model = {};
  /// Null: AdamW with its defaults.
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<nn::ParameterPointer>)> optimizer =
      {};
  /// This rank's rows of a step, part.first to part.first + part.rows - 1, as plain tensors whose
  /// dim 0 has part.rows entries. A function of its argument alone: so a run continues exactly.
  std::function<Tensors(const BatchPart& part)> data = {};
  /// The SUM of the losses of the rows. They come as distributed tensors; so does the sum.
  std::function<Tensor(nn::Module& model, const Tensors& rows)> loss_sum = {};
  /// Values of a step (from 0) that select its program: see StepGuards. The same on all ranks.
  std::function<StepGuards(std::int64_t step)> guards = {};
};

/// Starts the ranks, builds and shards the model, continues the newest checkpoint of the folder,
/// trains, and saves. An interrupt saves too. Returns the exit code of main: 0; 130 when it was
/// interrupted; 1 or 2 after an error, which is printed once. Call it before any thread exists.
int run_training(const TrainingRun& run);

}  // namespace tessera
