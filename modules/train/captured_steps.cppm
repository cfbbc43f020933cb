export module tessera.train:captured_steps;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.execute;
import tessera.passes;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import :step;
import :step_plan;

namespace tessera {
class EagerSteps;
class StepState;
}  // namespace tessera

export namespace tessera {

/// The captured steps of a training, Training::captured(): one step is taken as always, the next is
/// recorded, and the following ones are replayed, with the same bits and without autograd, layouts
/// and hooks. Steps with other rows, frozen parameters or guards get a program of their own in the
/// same way; the programs that were used last are kept.
class CapturedSteps {
 public:
  explicit CapturedSteps(EagerSteps& steps);
  ~CapturedSteps();
  CapturedSteps(const CapturedSteps&) = delete;
  CapturedSteps& operator=(const CapturedSteps&) = delete;

  /// Steps are captured from now on, or not; forgets programs. `execution`: what executes them.
  /// With changes of bits every step must be replayed, from the first one on (set_program): steps
  /// that would be taken as always are errors. What they add is state of the training; evaluations
  /// compute the model as it is written. With `across_steps`, a replayed step leaves its update to
  /// the next one, with the same bits (see docs/graph-modes.md, "Across steps"). Until then
  /// parameters, buffers and the optimizer's state are those before the update; whatever the
  /// training returns or saves is finished first. Error (input): an executor that does not exist.
  void set_enabled(bool enabled, const graph::ExecutionOptions& execution = {});
  bool enabled() const { return enabled_; }
  const graph::ExecutionOptions& execution() const { return execution_; }

  /// Replays this program from the next step on: of the same model, plan, optimizer and rank, and
  /// of a step in which no parameter that it updates had missed an update.
  /// Error: another rank's program. Other differences are errors of the next step.
  void set_program(Program program);
  /// The same before the first step, without a step that is not replayed. `make` builds a training
  /// of an equal model on the meta device (on_meta), and returns what capture() says of its steps.
  /// Returns what the host reads in a step and is not a guard: where it reads anything, nothing is
  /// set, and steps are recorded as they are taken. Errors: those of `make`; see set_program.
  std::string capture_ahead(const std::function<Program()>& make);
  /// Of a training on the meta device: takes steps until one is captured, and another one, which
  /// is recorded and compared. `step`: takes one. Errors: the two differ in what does not follow
  /// from the step's numbers (see program_of); of a model in stages, its StageStates are not
  /// exact.
  Program capture(const std::function<void()>& step);
  /// Every step must have a program of set_program(): others are errors, which say `why`.
  void require_program(std::string why) { needs_program_ = std::move(why); }

  /// That of the last step that was replayed or recorded; null: there was none.
  const Program* program() const;
  /// How steps were taken since set_enabled().
  const ReplayCounts& counts() const { return programs_.counts(); }
  /// Error (input): an input of the program, other than rows and what changes add, that
  /// this training does not have, or has in another form. After Optimizer::prepare_state.
  void check_inputs(const Program& program) const;

  /// Makes the update that the last step has left. Call it before you look at tensors of the model
  /// or the optimizer that were got before, or change them. Error: an error in the step after
  /// interrupted the update; load a checkpoint.
  void finish_updates();
  /// Whether the last step has left its update.
  bool has_left_updates() const;

 private:
  friend class Training;
  friend class TrainingCheckpoints;
  struct Capture;  // a program, and what it was recorded with
  enum class Part : std::uint8_t;
  /// The rows of a step's micro-batches, by the names that they have as inputs of a program.
  struct Rows {
    std::int64_t micro_batches = 0;
    StepInputs tensors = {};
  };

  // Training's.
  StepResult step(const StepBatch& batch, const StepFunctions& functions);
  /// After an error in a step.
  void abandon() noexcept;
  /// Gives back the memory that programs keep, for what is computed without them.
  void release_memory() noexcept;

  // TrainingCheckpoints'.
  const graph::AddedState& added() const { return added_; }
  /// Finishes updates where that is possible, as what is loaded may be refused.
  void before_load();
  /// Makes room for state that a checkpoint has of changes.
  void expect_added(const std::string& name, const Dims& shape, DType dtype);
  bool transforms() const { return !execution_.transforms.empty(); }
  /// All that steps have read is other than before.
  void after_load();

  Capture* last() const;
  Rows load_rows(const StepBatch& batch, const StepFunctions& functions);
  /// Why the program is none of such steps; "": it is.
  std::string misfit(const Capture& capture, const Rows& rows, const StepState& state) const;
  /// Equal for steps that one program can be right for.
  std::string kind_of(const Rows& rows, const StepState& state) const;
  /// A step that is recorded; no recording where it was skipped.
  StepResult record(const StepBatch& batch, const StepFunctions& functions,
                    std::optional<Recording>& recording);
  /// `counted`: the training is a step further then.
  StepResult replay(const StepBatch& batch, const Rows& rows, Capture& capture,
                    bool counted = true);
  /// A step by its program, and as it is written, which counts.
  StepResult verified(const StepBatch& batch, const StepFunctions& functions, const Rows& rows,
                      Capture& capture);
  /// Tensors that exist before a step.
  StepInputs inputs() const;
  /// `state`: in which the program was recorded.
  std::unique_ptr<Capture> capture_of(Program program, StepState state);
  /// `only_rows`: nothing else has changed since the last replay of this program.
  void gather_inputs(const Rows& rows, Capture& capture, Part which, bool only_rows);
  StepState state() const;

  // Updates that are left to the next step: left_updates.cpp.
  void add_parts(Capture& capture);
  /// Numbers of the step before, by their names in programs.
  static void add_before(StepVariables& variables, const StepVariables& before);
  void take_pending(Capture& capture);
  /// Runs the section that makes what the step before has left.
  void run_gradients(Capture& capture, Executor& executor, const StepVariables& variables);
  /// `variables`: of the step alone.
  void leave_update(Capture& capture, StepVariables variables);
  /// Errors: parameters were replaced or written while their update was left.
  void check_untouched(const Capture& capture) const;

  EagerSteps& steps_;
  bool enabled_ = false;
  graph::ExecutionOptions execution_;
  graph::AddedState added_;  // by changes of programs
  CapturedFunction programs_;
  StepGuards guards_;           // of the step
  bool replayed_last_ = false;  // by the last capture, and nothing else has written since
  std::int64_t verify_ = 0;     // of how many replayed steps one is verified; 0: none
  bool interrupted_ = false;    // an error interrupted the update of the step before
  std::string needs_program_;   // see require_program; empty: steps may be taken as written
};

}  // namespace tessera
