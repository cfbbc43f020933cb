export module tessera.train:training;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.checkpoint;
import tessera.record;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :ahead;
import :captures;

export namespace tessera {

/// The rows of a step, and what its losses are divided by.
struct StepBatch {
  std::int64_t rows = 0;        // of the whole step, on all ranks together
  std::int64_t micro_rows = 0;  // of this rank in one forward and backward; 0: all of its rows
  /// The number of rows of the whole step, or of tokens that count; see Training::total.
  double weight = 1;
  /// Tokens of the whole step, on all ranks and in all micro-batches, for a schedule by tokens.
  /// Tokens that are masked are tokens that the model has read: they are usually counted too.
  std::int64_t tokens = 0;
  /// The rows of a micro-batch are those of as many parts of the batch, one part after the other;
  /// 0: the plan's. A multiple of them, for a step that will be placed on other ranks.
  std::int64_t parts = 0;
  /// Parameters are looked at before the next step, or there is none: the update is not left to it
  /// (see Training::set_replay). Saves, evaluations and state() are right without it, but make what
  /// was left on its own then.
  bool last_train_step = false;
};

/// What one forward and backward computes: rows first to first + rows - 1 of the rows of the whole
/// step, which are of this rank's part.
struct BatchPart {
  std::int64_t step = 0;  // from 0; in an evaluation, the number of the batch
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

/// Runs the model: the SUM of the losses of the micro-batch's rows, as a scalar. The batch is
/// distributed in the plan's batch_layout(), so the sum is Partial along the axes that split the
/// batch; no number of ranks occurs anywhere.
using LossSum = std::function<Tensor(const BatchPart&)>;

/// The same in two functions, so that a step can be replayed: all that differs from step to step
/// must be in the rows.
struct StepFunctions {
  /// This rank's rows of the micro-batch as local tensors: tokens, targets, masks.
  std::function<Tensors(const BatchPart&)> rows;
  std::function<Tensor(const Tensors& rows)> loss_sum;
  StepGuards guards = {};  // other values than before: another program
};

struct StepResult {
  double loss = 0;  // the sum of all losses of the step divided by its weight, before the update
  double grad_norm = 0;  // of the whole model, before clipping
  double lr = 0;
  /// The gradients were not finite: parameters and optimizer are as before.
  bool skipped = false;
};

/// What a checkpoint says of a run besides its tensors.
struct TrainingProgress {
  std::int64_t step = 0;     // steps that are done
  std::int64_t tokens = 0;   // of these steps
  std::int64_t skipped = 0;  // of these steps
  std::map<std::string, RandomStream> streams = {};
};
/// Error (input) that names the scalar: it is absent, of a wrong type or out of range.
TrainingProgress read_training_progress(const CheckpointReader& reader);

/// The tensors and counts of a model and its optimizer, as a checkpoint has them: "model.NAME",
/// "optimizer.STATE.NAME". They are the live ones.
StateDict training_state(const optim::Optimizer& optimizer);

/// Trains a model that a plan was applied to. All ranks call every method together. Model and plan
/// must live as long. A model on the meta device can take steps too: nothing is computed, and a
/// mode must answer what the host reads.
class Training {
 public:
  /// `max_norm`: gradients are scaled so that their global norm is at most this; 0: they are not.
  /// Error (input): see Schedule::check.
  Training(nn::Module& model, parallel::ParallelPlan& plan,
           std::unique_ptr<optim::Optimizer> optimizer, const optim::Schedule& schedule,
           double max_norm = 0);

  /// Instead of the constructor's max_norm. Error (input): see Clipping::check.
  void set_clipping(const optim::Clipping& clipping);
  /// Multiplies the losses by a factor and divides the gradients by it, so that gradients in f16
  /// stay in its range. A step whose gradients are not finite is skipped: the optimizer counts no
  /// step, the rows and the schedule move on, and the factor falls.
  void set_loss_scaling(const optim::GradScalerOptions& options);
  /// Null: losses are not scaled.
  const optim::GradScaler* scaler() const { return scaler_ ? &*scaler_ : nullptr; }
  /// Steps that were skipped; done() counts them too.
  std::int64_t skipped() const { return skipped_; }

  /// Step number done(): for each micro-batch the loss and its backward, in which styles reduce
  /// gradients after the last one; then the gradients that are still Partial are reduced, the norm
  /// is computed, the styles free what the optimizer overwrites, the optimizer updates, and the
  /// gradients are dropped. Random numbers are those of the rows' places in the whole step, so they
  /// depend neither on the layout nor on the micro-batches.
  /// The parts of the batch may have different numbers of rows, or none, where there is one
  /// micro-batch.
  /// Errors: micro-batches that do not divide the rows equally; a step without tokens where the
  /// schedule counts them; a loss that is not a distributed
  /// scalar; the loss or the norm is not finite (nothing was updated then). After an error the
  /// gradients are dropped and done() is as before.
  StepResult step(const StepBatch& batch, const LossSum& loss_sum);
  /// The same. With set_replay(true) one step is taken as always, the next is recorded, and the
  /// following ones are replayed: the same bits, without autograd, layouts and hooks. Steps with
  /// other rows, or other frozen parameters, get a program of their own in the same way; the last
  /// few programs are kept. Numbers that the host computes and that are no Number are constants of
  /// the program. Errors: see program_of.
  StepResult step(const StepBatch& batch, const StepFunctions& functions);
  /// `execution`: what executes the program. With transformations every step must be replayed, from
  /// the first one on (set_program): steps that would be taken as always are errors. What they add
  /// is state of the training; evaluations compute the model as it is written.
  /// With `across_steps`, a replayed step leaves its update to the next one, with the same bits
  /// (see docs/graph.md, "Across steps"). Until then parameters, buffers and the optimizer's state
  /// are those before the update; whatever this class returns or saves of them is finished first.
  /// Error (input): an executor that does not exist.
  void set_replay(bool enabled, const graph::ExecutionOptions& execution = {});
  /// Replays this program from the next step on: of the same model, plan, optimizer and rank, and
  /// of a step in which no parameter that it updates had missed an update.
  /// Error: another rank's program. Other differences are errors of the next step.
  void set_program(Program program);
  /// The same before the first step, without a step that is not replayed. `make` builds a training
  /// of an equal model on the meta device (on_meta), and returns what capture() says of its steps.
  /// Returns what the host reads in a step and is no guard: where it reads anything, nothing is
  /// set, and steps are recorded as they are taken. Errors: those of `make`; see set_program.
  std::string capture_ahead(const std::function<Program()>& make);
  /// Of a training on the meta device: takes steps until one is captured, and another one, which
  /// is recorded and compared. `step`: takes one. Error: the two differ in what does not follow
  /// from the step's numbers (see program_of).
  Program capture(const std::function<void()>& step);
  /// What the last replayed or recorded step has; null: nothing yet.
  const Program* program() const {
    return captures_.empty() ? nullptr : &captures_.back().whole().program();
  }
  const ReplayCounts& replays() const { return counts_; }
  /// Error (input): an input of the program, other than rows and what transformations add, that
  /// this training does not have, or has in another form. After Optimizer::prepare_state.
  void check_inputs(const Program& program) const;
  /// Makes the update that the last step has left. Call it before you look at tensors of the model
  /// or the optimizer that were got before, or change them. Error: an error in the step after
  /// interrupted the update; load a checkpoint.
  void finish_updates();
  /// Whether the last step has left its update.
  bool has_left_updates() const { return left_.has_value(); }

  /// The sum of all losses of `batches` batches divided by `batch.weight`, which is that of all of
  /// them, in evaluation mode and without gradients. The model has its training mode again
  /// afterwards, also when it throws. Error: the loss is not finite.
  double evaluate(std::int64_t batches, const StepBatch& batch, const LossSum& loss_sum);
  /// The same, by the program of set_evaluation() if there is one: its rows are `functions.rows`.
  double evaluate(std::int64_t batches, const StepBatch& batch, const StepFunctions& functions);
  /// The evaluation of one micro-batch of such batches as a program, recorded: its section
  /// "evaluation" computes the output "loss", the sum of the losses of the rows. No values are
  /// read, so the model may be on the meta device.
  Program record_evaluation(const StepBatch& batch, const StepFunctions& functions);
  /// Evaluates by this program from now on: with the passes of set_replay() but those that a budget
  /// of memory belongs to, and without transformations, which change steps. Its memory is free
  /// between evaluations.
  void set_evaluation(Program program);
  /// Every step must have a program of set_program(): others are errors, which say `why`.
  void require_program(std::string why) { needs_program_ = std::move(why); }

  /// The sum of `mine` over the parts of the batch: of tokens that are not masked, for example.
  /// One small all-reduce along each axis that splits the batch.
  double total(double mine) const;

  std::int64_t done() const { return done_; }
  /// The sum of StepBatch::tokens of the steps that are done.
  std::int64_t tokens() const { return tokens_; }
  optim::Optimizer& optimizer() {
    finish_updates();
    return *optimizer_;
  }
  nn::Module& model() {
    finish_updates();
    return model_;
  }
  const parallel::ParallelPlan& plan() const { return plan_; }
  /// What this rank keeps in memory that all ranks can reach: shards along an axis that splits the
  /// batch, which are gathered before they are used.
  std::size_t shared_bytes() const;
  /// What this rank keeps in other places than the device's memory (nn::MemoryPlace).
  std::size_t bytes_elsewhere() const;

  /// Everything that the next step depends on: parameters, optimizer, the number of steps, random
  /// streams. The tensors are the live ones: see finish_updates.
  StateDict state();
  /// Saves the state (see save_checkpoint). Errors name the last checkpoint, which stays: values
  /// that are not finite, a full disk.
  void save(const std::string& folder, const std::string& meta_data = "{}",
            const SaveOptions& options = {});
  /// The same in the background: returns when the state was copied (see CheckpointSaver::start).
  /// Errors of it are thrown by the next two, which return the folder when it was saved.
  void start_save(const std::string& folder, const std::string& meta_data = "{}",
                  const SaveOptions& options = {});
  /// Nothing where no save has ended since; never blocks, and ranks may call it alone.
  std::optional<std::string> finished_save();
  std::optional<std::string> wait_for_save();
  /// Whether a save is running on any rank; the same on all of them.
  bool saving_anywhere() const { return saver_.saving_anywhere(); }
  /// Restores the state, whatever the mesh and the layout that it was saved from: the next step is
  /// the one that would have followed. Errors (input): another model, damage.
  void load(const std::string& folder);
  /// Loads the newest checkpoint among FOLDER/step-N; false where there is none.
  bool resume(const std::string& folder);
  /// Error: a parameter or the optimizer's state has values that are NaN or infinite on this rank.
  void check_finite();
  /// "the last good checkpoint is ...", for the end of an error's text. Waits for a save that is
  /// running: it may be that one. Ranks may call it alone.
  std::string last_checkpoint();

 private:
  struct MicroPart {
    BatchPart batch;
    std::int64_t number = 0;
    bool last = false;
  };
  struct Rows {
    std::int64_t part = 0;   // of this rank
    std::int64_t first = 0;  // of the rows of the whole step
    std::int64_t micro = 0;
    bool equal = false;  // every rank has as many

    /// At least 1: a rank without rows takes part too.
    std::int64_t micro_batches() const { return part == 0 ? 1 : part / micro; }
    /// Calls `body` for each micro-batch of this rank, in order.
    void each(std::int64_t step, const std::function<void(const MicroPart&)>& body) const;
  };
  Rows rows_of(const StepBatch& batch) const;
  Tensor checked(Tensor loss) const;
  /// The loss on all ranks, as a local tensor.
  Tensor whole(const Tensor& loss) const;
  double read(const Tensor& loss) const;
  /// `recorder`: null for a step that is not recorded. Error: see step().
  StepResult take_step(const StepBatch& batch, const StepFunctions& functions, Recorder* recorder);
  /// What loss and norm are, of a loss and gradients that are scaled. Errors: the loss is not
  /// finite; the norm is not, and such steps are not skipped.
  StepResult checked(const StepBatch& batch, double loss, double power);
  /// What the optimizer multiplies gradients by.
  double grad_scale(const StepResult& result) const;
  double lr_of(const StepBatch& batch) const;
  double scale() const { return scaler_ ? scaler_->scale() : 1; }
  void set_scale();
  void count_step(const StepBatch& batch, bool was_skipped);
  /// The name of the output of a recorded step that the norm is computed from.
  const char* norm_output() const;
  /// Of an evaluation. Error: it is not finite.
  double checked_evaluation(double loss);

  /// Errors of saving, with the last checkpoint in their advice.
  void saving(const std::function<void()>& act);
  std::optional<std::string> saved(std::optional<std::string> folder);

  // In replayed.cpp.
  StepResult record_step(const StepBatch& batch, const StepFunctions& functions);
  /// The rows of a step's micro-batches, by the names that they have as inputs of a program.
  struct StepRows {
    std::int64_t micro_batches = 0;
    std::map<std::string, Tensor> tensors = {};
  };
  /// A program, and what it was given last, in the order of its inputs.
  struct ProgramPart {
    std::unique_ptr<Executor> executor = nullptr;
    std::vector<Tensor> given = {};
  };
  /// A program that steps are replayed from, and those that leave its update to the next step (see
  /// graph::AcrossSteps). Only one of them has memory at a time.
  struct Capture {
    enum PartNumber : std::uint8_t { whole_step, first, middle, last, rest, part_count };
    std::array<ProgramPart, part_count> parts = {};
    PartNumber running = whole_step;
    std::vector<bool> trained = {};  // by parameter
    ModuleForms modules = {};
    std::vector<std::int64_t> missed = {};  // by parameter: see missed_updates
    std::vector<std::size_t> updated = {};  // the optimizer's parameters that it updates, in order
    std::vector<GuardValue> guards = {};    // those within the step
    std::vector<Tensor> parameters = {};    // that `inputs` has the local tensors of
    /// Of all parts, without rows: gradients that are kept elsewhere are the same ones in each.
    std::map<std::string, Tensor> inputs = {};
    std::map<std::string, Tensor> pending = {};  // what is kept until the update is made
    std::vector<std::uint64_t> versions = {};    // of the parameters, when it was left

    Executor& whole() const { return *parts[whole_step].executor; }
    bool leaves() const { return static_cast<bool>(parts[first].executor); }
  };
  StepRows load_rows(const StepBatch& batch, const StepFunctions& functions);
  /// Why the program is none of such steps; "": it is.
  std::string misfit(const Capture& capture, const StepRows& rows) const;
  /// The program of such steps, which is the last of captures_ then. `known`: guards that the step
  /// has read. Null: there is none, and counts_.refusal says why the one that was used last is not.
  Capture* capture_of(const StepRows& rows, const std::vector<GuardValue>& known);
  /// What is known of a step before it is taken as always.
  struct Attempt {
    std::vector<GuardValue> known = {};  // guards that replays have read until one ended them
    bool refused = false;                // it has a program, and one that it must not have
  };
  /// Replays the step; nothing where that cannot be, and counts_.refusal says why.
  std::optional<StepResult> replayed(const StepBatch& batch, const StepRows& rows,
                                     Attempt& attempt);
  /// Equal for steps that one program can be right for.
  std::string kind_of(const StepRows& rows) const;
  /// A step that is recorded; its program is captured.
  StepResult capture_step(const StepBatch& batch, const StepFunctions& functions,
                          const std::string& kind);
  StepResult replay_step(const StepBatch& batch, const StepRows& rows, Capture& capture,
                         StepVariables variables);
  /// What a step's dynamic arguments follow from, before its update is known.
  StepVariables variables_of(const StepBatch& batch, const Program* program) const;
  void set_update(StepVariables& variables, double lr, double grad_scale) const;
  /// Tensors that exist before a step.
  std::map<std::string, Tensor> inputs() const;
  /// `missed`: the updates that each parameter had missed when the program was recorded.
  void add_capture(Program program, std::vector<std::int64_t> missed, const std::string& reason);
  void gather_inputs(const StepRows& rows, Capture& capture, Capture::PartNumber number);
  // In across.cpp.
  /// Their memory is free for what is computed without them.
  void rest_captures() noexcept;
  void add_parts(Capture& capture);
  static void add_before(StepVariables& variables, const StepVariables& before);
  void take_pending(Capture& capture);
  /// Runs the section that makes what the step before has left.
  void run_gradients(Executor& executor, const StepVariables& variables);
  void leave_update(Capture& capture, const StepVariables& variables);
  /// Errors: parameters were replaced or written while their update was left.
  void check_untouched(const Capture& capture) const;
  StateDict live_state() const;
  std::vector<bool> trained() const;
  ModuleForms module_forms() const;
  /// How many of the training's updates each parameter that is trained has not taken, because it
  /// was frozen: its step count is the training's less that. 0 for those that have taken none.
  std::vector<std::int64_t> missed_updates() const;

  nn::Module& model_;
  parallel::ParallelPlan& plan_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::Schedule schedule_;
  optim::Clipping clipping_;
  std::optional<optim::GradScaler> scaler_;
  Tensor scale_;  // the scaler's factor: an input of recorded steps
  parallel::GradientFinisher finisher_;
  std::int64_t done_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t skipped_ = 0;
  bool replays_ = false;
  ReplayCounts counts_;
  graph::ExecutionOptions execution_;
  graph::AddedState added_;                    // by transformations of programs
  std::vector<Capture> captures_;              // the one that was used last is the last
  std::map<std::string, std::int64_t> kinds_;  // of steps without a program: how many were taken
  bool compares_ = false;                      // by capture()
  std::map<std::string, Recording> recorded_;  // by kind: those that others are compared with
  StepGuards guards_;                          // of the step
  bool replayed_last_ = false;         // by the last capture, and nothing else has written since
  std::optional<StepVariables> left_;  // of the step by the last capture that left its update
  bool lost_ = false;                  // an error interrupted the update of the step before
  std::string needs_program_;          // see require_program; empty: steps may be eager
  std::unique_ptr<Executor> evaluation_;
  std::string last_checkpoint_;  // saved or loaded; empty: none
  CheckpointSaver saver_;
  std::optional<std::string> ended_save_;  // that an error's text has waited for
};

}  // namespace tessera
