export module tessera.train:captured_step;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :captures;
import :step_inputs;
import :training;

export namespace tessera {

/// What a step of a program's own works on; all of it outlives the step.
struct StepParts {
  std::vector<nn::Module*> modules = {};            // whose parameters and buffers it uses
  std::vector<optim::Optimizer*> optimizers = {};   // of parameters of these modules
  std::vector<parallel::ParallelPlan*> plans = {};  // those of the modules that have one
};

/// Numbers that may differ from call to call without a new program.
struct StepNumbers {
  std::vector<double> lr = {};                // of each optimizer
  std::map<std::string, double> others = {};  // by names of the program's own
  StepGuards guards = {};                     // with other values the call has another program
};

/// A program of a step's calls, and what their inputs and results are.
struct CapturedProgram {
  Program program = {};
  std::string form = {};                 // of the inputs: CapturedStep::form_of
  std::vector<SpecHandle> layouts = {};  // of the results; null: not distributed
};

/// What the body of a step gets.
class StepCall {
 public:
  /// What the call was given; a tensor of another shape, type or layout gets a program of its own.
  const Tensors& inputs() const { return *inputs_; }
  /// In a call that is recorded, what is computed from it follows from it.
  Number number(const std::string& name) const;
  /// A value that selects the program of the call; the body may use it as any other constant.
  double guard(const std::string& name) const;
  /// Optimizer number i takes its step: sums of gradients that are still under way are completed,
  /// the parameters are updated, and its gradients dropped. Once in a call.
  /// Errors: there is no such optimizer; it was updated before; those of Optimizer::step.
  void update(std::size_t optimizer = 0);

 private:
  friend class CapturedStep;
  StepCall(class CapturedStep& step, const Tensors& inputs, const StepNumbers& numbers,
           Recorder* recorder);

  class CapturedStep& step_;
  const Tensors* inputs_;
  const StepNumbers& numbers_;
  Recorder* recorder_;
  std::vector<bool> updated_;
};

/// A step of a program's own, with any number of modules and optimizers, that is captured: the
/// first call with inputs of one form is taken as it is, the second is recorded, and then calls are
/// replayed, with the same bits and without autograd, layouts and hooks. Training does this for the
/// usual step; this is for others, such as two models that train each other.
///
/// All that differs from call to call is in the inputs, the numbers, parameters, buffers, the
/// optimizers' state and random streams. What the host reads within the body must not differ, or is
/// a guard(): a call in which one differs from the recording is taken by another program. A call
/// with other StepNumbers::guards has a program of its own.
/// Gradients that no update has used are dropped at the end of a call.
class CapturedStep {
 public:
  /// Computes, goes backward and updates; returns what the call returns (losses). All ranks make
  /// the same calls.
  using Body = std::function<Tensors(StepCall& call)>;

  /// With transformations every call must be replayed, from the first one on (capture_ahead): calls
  /// that would be taken as they are are errors.
  /// Errors (input): see graph::check.
  CapturedStep(StepParts parts, Body body, const graph::ExecutionOptions& execution = {});
  ~CapturedStep();
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  /// One call. The results are the caller's, without a gradient's path.
  /// Errors: a learning rate for each optimizer is missing; those of the body; two recorded calls
  /// differ in what no number explains (see program_of). After an error gradients are dropped.
  Tensors operator()(const Tensors& inputs, const StepNumbers& numbers = {});

  /// Replays this program from the next call on: of equal parts, in a state in which no parameter
  /// that it updates has missed an update. Calls of another form are taken as always.
  /// Error: another rank's program.
  void set_program(CapturedProgram captured);
  /// The same before the first call. `make` builds an equal step of modules on the meta device
  /// (on_meta) and returns what capture() says of it. Returns what the host reads in a call and is
  /// no guard: where it reads anything, nothing is set, and calls are recorded as they are taken.
  std::string capture_ahead(const std::function<CapturedProgram()>& make);
  /// Of a step of modules on the meta device, without execution options: calls it until one is
  /// captured and another one was compared with it. `inputs`: on the meta device. Error: the two
  /// calls differ in what does not follow from the numbers (see program_of).
  CapturedProgram capture(const Tensors& inputs, const StepNumbers& numbers = {});
  /// What calls that one program is right for have in common: types, shapes, layouts.
  static std::string form_of(const Tensors& inputs);
  /// State that transformations have added, by its names in programs. Set it before a program that
  /// goes on with it; a checkpoint of the caller's saves it.
  graph::AddedState& added() { return added_; }

  /// Gives back the memory that programs keep between calls; the next call takes it again.
  void release_memory() noexcept;
  const ReplayCounts& counts() const { return calls_of_.counts(); }
  /// That of the last call that was recorded or replayed; null: there was none.
  const Program* program() const;

 private:
  friend class StepCall;
  struct Capture;

  /// By optimizer and parameter: how many updates it has taken less than the one with most; nothing
  /// for parameters that are frozen.
  using Missed = std::vector<std::vector<std::optional<std::int64_t>>>;

  Missed missed() const;
  std::string kind_of(const Tensors& inputs, const StepNumbers& numbers,
                      const ModuleForms& modules) const;
  /// Why the program is none of such calls; "": it is.
  std::string misfit(const Capture& capture, const std::string& form, const ModuleForms& modules,
                     const Missed& missed, const StepNumbers& numbers) const;
  StepVariables variables_of(const StepNumbers& numbers) const;
  /// What follows from variables, while a call is recorded.
  Number lr_of(std::size_t optimizer, double lr, bool recorded) const;
  Count count_of(std::size_t optimizer, bool recorded) const;
  StepInputs state() const;
  Tensors take(const Tensors& inputs, const StepNumbers& numbers, Recorder* recorder);
  Tensors body(StepCall& call);
  Tensors record(const Tensors& inputs, const StepNumbers& numbers,
                 std::optional<Recording>& recording);
  std::unique_ptr<Capture> capture_of(CapturedProgram captured, Missed missed);
  Tensors replay(Capture& capture, const Tensors& inputs, const StepVariables& variables);
  Tensors call(const Tensors& inputs, const StepNumbers& numbers);
  void drop_gradients() noexcept;
  /// The names that parameters have as inputs of a program.
  std::string input_of(const nn::ParameterPointer& parameter) const;
  void update(std::size_t optimizer, double lr, Recorder* recorder);

  StepParts parts_;
  std::vector<std::pair<std::string, nn::ParameterPointer>> parameters_;  // each once
  std::map<const nn::Parameter*, std::string> inputs_;  // of parameters, by their names in programs
  std::vector<std::pair<std::string, nn::BufferPointer>> buffers_;
  Body body_;
  graph::ExecutionOptions execution_;
  std::vector<std::unique_ptr<parallel::GradientFinisher>> finishers_;  // of each optimizer
  std::int64_t calls_ = 0;
  bool replayed_last_ = false;
  CapturedFunction calls_of_;
  graph::AddedState added_;  // by transformations of programs
};

}  // namespace tessera
