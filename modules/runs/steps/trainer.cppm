export module tessera.runs:trainer;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import tessera.passes;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.train;
import :ledger;
import :metrics;
import :row_history;
import :spike_policy;
import :training_run;
import :task;
import :expert_loads;

// One rank's part of a run.

export namespace tessera::runs {

/// The training that a config asks for, of one rank. All ranks call every method together.
class Trainer {
 public:
  /// Builds the model on the meta device, applies the styles, allocates the parameters and fills
  /// them, as the task says. Errors (input): what the parallel plan
  /// refuses. On the meta device nothing is allocated or filled, steps use no data and nobody
  /// communicates; a mode must answer what the host reads (try_step).
  explicit Trainer(const Run& run, Device device = cpu);
  /// A trainer on the meta device, with another step. `replaced`: what takes the place of modules.
  Trainer(const Run& run, const StepSetup& setup, std::span<const graph::Change> replacing = {});

  /// Restores everything that a step depends on. Errors (input): another model, damage.
  void resume(const std::string& checkpoint);
  /// The same from the state that was kept.
  void resume(const MemoryStateStore& kept);
  /// Saves its checkpoints as the config says; `say` is called with lines for people. `kept`: where
  /// the state is kept after every step; null: nowhere.
  RunCheckpoints checkpoints(std::function<void(const std::string&)> say,
                             MemoryStateStore* kept = nullptr);

  /// Saves one checkpoint now, as those of the run.
  void save(const std::string& folder);
  /// The text of the run's record in the state that is saved and kept; that of the state which was
  /// loaded last; empty: it has none.
  void set_record(std::string text);
  std::string record() const;

  /// Where steps book the time in which rows are read and programs made; null: nowhere. It must
  /// live as long.
  void set_ledger(TimeLedger* ledger) { ledger_ = ledger; }

  /// Step number done() (counted from 0).
  /// `last`: see StepBatch::last_train_step.
  StepResult step(bool last = false);
  /// With other rows than those of the setup, on the meta device.
  StepResult step(const StepRows& rows, bool last = false);
  /// The means over the validation batches; nothing when there are none. Error: the loss is not
  /// finite.
  std::optional<Validation> validate();
  /// The evaluation of a micro-batch; see CapturedEvaluation::record.
  void record_evaluation(OneRank& into);

  const Training& training() const { return *training_; }
  /// The rows of a step that this rank computes.
  RowDivision division() const { return training_->division(batch_of(setup_.rows)); }
  RankTask& task() { return *task_; }
  /// With train.on_spike: what the last step was, if it was one.
  const std::optional<Spike>& spike() const { return spike_; }
  /// After a step that was refused: the state of this checkpoint again, from which on the rows of
  /// the step are left out. Returns their places. Errors (input): see RowHistory::leave_out; the
  /// rows are not those of files.
  std::vector<std::vector<std::string>> roll_back(const std::string& checkpoint);
  std::int64_t done() const { return training_->done(); }
  /// How its steps were taken, and what they are replayed from.
  const ReplayCounts& replays() const { return training_->captured().counts(); }
  /// The program that steps are replayed from; null: none yet.
  const auto* program() const { return training_->captured().program(); }
  /// Its text; empty: nothing yet.
  std::string program_text() const;
  void set_capture(bool enabled) { training_->captured().set_enabled(enabled); }
  /// Error (input): the program of `captured`, whose modules were replaced, needs what this one's
  /// model does not have (see Training::check_inputs).
  void check_inputs(const Trainer& captured);
  /// Takes steps until program() is one; for a trainer on the meta device.
  void capture();
  /// Replays from the next step on, by a program that is captured on the meta device now. Where a
  /// step reads values on the host, which the meta device does not have, nothing changes: a step
  /// is recorded as it is taken. With graph.mode, the program is the one that the mode has
  /// placed, and the first step or validation calls this where nobody has. Errors: see
  /// capture_step.
  void capture_ahead();
  /// Replays the program of this text from the next step on. Errors (input): see Program::parse.
  void set_program(const std::string& text, const std::string& where);
  const DeviceMesh& mesh() const { return setup_.mesh; }
  const parallel::ParallelPlan& plan() const { return *plan_; }
  const RankTask& task() const { return *task_; }
  /// See ExpertLoads::read.
  std::vector<LayerLoads> expert_loads(collective::World& world) {
    return expert_loads_->read(world);
  }
  nn::Module& model() {
    training_->captured().finish_updates();
    return *model_;
  }
  std::size_t shared_bytes() const;
  std::size_t bytes_elsewhere() const { return tessera::bytes_elsewhere(training_->optimizer()); }
  /// Bytes of this rank's part of the optimizer's state.
  std::size_t state_bytes() const;
  /// Memory that a save in the background keeps, besides the state itself, and kept_bytes().
  std::size_t snapshot_bytes() const;
  /// Bytes of the states of this rank that are kept in memory, on all machines (kept_copies).
  std::size_t kept_bytes() const;

 private:
  /// What a checkpoint says of the run besides its state. `updates`: the member that
  /// hub::updates_member makes.
  std::string checkpoint_meta(const std::string& updates) const;
  /// Functions of a step that reads these rows.
  StepFunctions functions(std::function<Tensors(const BatchPart&)> rows) const;
  StepBatch batch_of(const StepRows& rows, bool last = false) const;
  void watch_spikes();
  void take_texts();
  /// Puts what is left out, and what is known of spikes, into the state that is saved.
  void give_texts();
  StepBatch evaluation_batch(std::int64_t batches) const;

  Trainer(const Run& run, const StepSetup& setup, Device device,
          std::span<const graph::Change> replacing);

  const Run& run_;
  StepSetup setup_;
  Device device_;
  std::shared_ptr<nn::Module> model_;
  std::unique_ptr<parallel::ParallelPlan> plan_;
  std::unique_ptr<RankTask> task_;
  std::unique_ptr<ExpertLoads> expert_loads_;
  std::unique_ptr<Training> training_;
  TimeLedger* ledger_ = nullptr;
  std::optional<SpikePolicy> policy_;
  std::optional<SpikeDetector> detector_;
  std::optional<Spike> spike_;
  std::int64_t refused_in_turn_ = 0;       // steps
  std::shared_ptr<const OneRank> placed_;  // with graph.mode: above distribution
};

/// Seconds in which the host makes the calls of an eager step besides kernels and collectives: the
/// shortest of some steps of a trainer on the meta device that has made one (see host_seconds of a
/// run).
double host_seconds(Trainer& trainer);

}  // namespace tessera::runs
