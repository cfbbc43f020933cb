export module tessera.train:compile;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.program;
import tessera.passes;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import :step;
import :step_plan;

namespace tessera {
class StepObjects;
}

export namespace tessera {

/// Values that may differ from call to call of a compiled step.
struct StepNumbers {
  /// A learning rate, a weight: they change no program.
  std::map<std::string, double> numbers = {};
  /// With other values the call has another program.
  StepGuards guards = {};
};

/// What a step gets in each call.
class StepCall {
 public:
  /// What the call was given; a tensor of another shape, type or layout gets a program of its own.
  const Tensors& inputs() const { return *inputs_; }
  /// In a call that is recorded, what is computed from it follows from it, and its plain value() is
  /// an error that names it.
  Number number(const std::string& name) const;
  /// A value that selects the program of the call; the step may use it as any other constant.
  double guard(const std::string& name) const;
  /// The optimizer takes its step: sums of gradients that are still under way are completed, the
  /// parameters are updated, and its gradients dropped. Once in a call. `lr`: a number of the call,
  /// or what is computed from one; another one is a constant.
  /// `clipping`: of its gradients, multiplied by `grad_scale`. It is computed by operators, so a
  /// norm that is not finite is not an error: read gradient_norm() by guard().
  /// Errors: it was updated before; those of Optimizer::step and of Clipping::check.
  void update(optim::Optimizer& optimizer, const Number& lr, const optim::Clipping& clipping = {},
              const Number& grad_scale = 1);
  /// The norm over all gradients of the optimizer's parameters, whose sums are complete then: a
  /// local tensor without dims, the same on every rank (see optim::gradient_norm_power).
  Tensor gradient_norm(optim::Optimizer& optimizer, double p = 2);
  /// The step reads or writes tensors of a model that it may not call, such as an average of
  /// another one's weights.
  void uses(nn::Module& module);

 private:
  friend class CompiledStep;
  StepCall(StepObjects& objects, const Tensors& inputs, StepPlan& plan);
  /// Adds the models that were called so far.
  void note_models();

  StepObjects& objects_;
  const Tensors* inputs_;
  StepPlan& plan_;
  nn::ModuleWatch watch_;
  std::set<std::size_t> updated_;  // optimizers, by their numbers
};

/// Computes, goes backward and updates; returns what the call returns (losses), of which the caller
/// gets no gradient's path.
using StepBody = std::function<Tensors(StepCall& call)>;
/// Makes the models, plans and optimizers of a step on a device, which the step keeps: on the meta
/// device, where nothing has memory and nothing is computed, to capture it before its first call.
using StepFactory = std::function<StepBody(Device device)>;

/// Options of compile.
struct CompileOptions {
  /// Changes in their order, passes first: by name, built in or a plugin's, or by functions.
  std::vector<graph::Change> changes = graph::default_changes();
  /// How the program is executed. Its passes and other changes come after `changes`.
  graph::ExecutionOptions execution = {};
  /// For a factory whose step is that of one rank, without plans: it is placed on `mesh`, over
  /// whose ranks dim 0 of its inputs is split (see graph::data_parallel).
  std::optional<graph::DataParallelMode> mode = std::nullopt;
  DeviceMesh mesh = {};
  Device device = cpu;  // on which a factory makes what is trained
  /// Every so many replayed calls are verified: see graph::ExecutionOptions::verify.
  std::int64_t verify = 0;
};

/// A step that is captured: the first call with inputs of one form is taken as it is, the second is
/// recorded, and then calls are replayed, with the same bits and without autograd, layouts and
/// hooks. That of a factory is captured before its first call, if the host reads nothing in it but
/// guards. Models (with their plans) and optimizers are found while the step runs.
///
/// All that differs from call to call is in the inputs, the numbers, parameters, buffers, the
/// optimizers' state and random streams. What the host reads within the step must not differ, or is
/// a guard(): a call in which one differs from the recording is taken by another program.
/// Gradients that no update has used are dropped at the end of a call.
class CompiledStep {
 public:
  CompiledStep(StepBody step, const CompileOptions& options);
  CompiledStep(StepFactory make, const CompileOptions& options);
  ~CompiledStep();
  CompiledStep(const CompiledStep&) = delete;
  CompiledStep& operator=(const CompiledStep&) = delete;

  /// One call. All ranks make the same calls. The results are the caller's.
  /// Errors: those of the step; two recorded calls differ in what no number explains (see
  /// program_of); a call that has no program, where each must be changed or placed. After an error
  /// gradients are dropped.
  Tensors operator()(const Tensors& inputs, const StepNumbers& numbers = {});

  /// State that changes have added, by its names in programs. Set it before the first call
  /// of a run that goes on with it; a checkpoint of the caller's saves it.
  graph::AddedState& added();
  /// Gives back the memory that programs keep between calls; the next call takes it again.
  void release_memory() noexcept;
  const ReplayCounts& counts() const;
  /// That of the last call that was recorded or replayed; null: there was none.
  const Program* program() const;
  /// What the host reads in a call and is not a guard, for which it was not captured before the
  /// first one; empty: nothing.
  const std::string& reads() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Captures a step at its calls. `step` refers to models and optimizers that exist, and that
/// outlive the result.
///     CompiledStep step = compile([&](StepCall& call) -> Tensors {
///       const Tensor loss = loss_of(model(call.inputs()[0]));
///       backward(loss);
///       call.update(*optimizer, call.number("lr"));
///       return {loss};
///     });
///     const Tensors losses = step({rows}, {.numbers = {{"lr", 1e-3}}});
/// Errors (input): see graph::check; a pass comes after a change of another kind.
CompiledStep compile(StepBody step, const CompileOptions& options = {});
/// The same, captured before its first call: a budget of memory, changes of bits and a mode hold
/// from then on.
CompiledStep compile(StepFactory make, const CompileOptions& options = {});

}  // namespace tessera
