export module tessera.train:captured_step;

import tessera.base;
import tessera.tensor;
import tessera.record;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
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
};

/// What the body of a step gets.
class StepCall {
 public:
  /// What the call was given; a tensor of another shape, type or layout gets a program of its own.
  const Tensors& inputs() const { return *inputs_; }
  double number(const std::string& name) const;
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

/// A step of a program's own, with any number of modules and optimizers, that is captured: calls
/// with inputs of one form are taken two times as they are, two times recorded, and then replayed,
/// with the same bits and without autograd, layouts and hooks. Training does this for the usual
/// step; this is for others, such as two models that train each other.
///
/// All that differs from call to call is in the inputs, the numbers, parameters, buffers, the
/// optimizers' state and random streams. What the host reads within the body must not differ.
/// Gradients that no update has used are dropped at the end of a call.
class CapturedStep {
 public:
  /// Computes, goes backward and updates; returns what the call returns (losses). All ranks make
  /// the same calls.
  using Body = std::function<Tensors(StepCall& call)>;

  /// Errors (input): see graph::check; transformations, which need steps that are captured before
  /// the first one.
  CapturedStep(StepParts parts, Body body, const graph::ExecutionOptions& execution = {});
  ~CapturedStep();
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  /// One call. The results are the caller's, without a gradient's path.
  /// Errors: a learning rate for each optimizer is missing; those of the body; two recorded calls
  /// differ in what no number explains (see program_of). After an error gradients are dropped.
  Tensors operator()(const Tensors& inputs, const StepNumbers& numbers = {});

  /// Gives back the memory that programs keep between calls; the next call takes it again.
  void rest() noexcept;
  const ReplayCounts& counts() const { return counts_; }
  /// That of the last call that was recorded or replayed; null: there was none.
  const Program* program() const;

 private:
  friend class StepCall;
  struct Capture;
  struct Kind;

  std::string kind_of(const Tensors& inputs) const;
  StepVariables variables_of(const StepNumbers& numbers) const;
  /// As variables_of, with numbers of optimizer i that no call has.
  StepVariables rehearsed(StepVariables variables, std::size_t optimizer, double lr,
                          std::int64_t more_steps) const;
  std::map<std::string, Tensor> state() const;
  Tensors take(const Tensors& inputs, const StepNumbers& numbers, Recorder* recorder);
  Tensors body(StepCall& call);
  Tensors record(const Tensors& inputs, const StepNumbers& numbers, Kind& kind,
                 const std::string& name);
  Tensors replay(Capture& capture, const Tensors& inputs, const StepVariables& variables);
  Tensors call(const Tensors& inputs, const StepNumbers& numbers);
  void drop_gradients() noexcept;
  /// The parameters of an optimizer that are among these inputs of a program, by their own names.
  std::vector<std::string> updated(const std::vector<std::string>& written,
                                   const optim::Optimizer& optimizer) const;
  void update(std::size_t optimizer, double lr, Recorder* recorder);

  StepParts parts_;
  std::vector<std::pair<std::string, nn::ParameterPointer>> parameters_;  // each once
  std::vector<std::pair<std::string, nn::BufferPointer>> buffers_;
  Body body_;
  graph::ExecutionOptions execution_;
  std::vector<std::unique_ptr<parallel::GradientFinisher>> finishers_;  // of each optimizer
  std::int64_t calls_ = 0;
  bool replayed_last_ = false;
  StepVariables recorded_;  // of the call that is being recorded
  ReplayCounts counts_;
  std::vector<std::unique_ptr<Capture>> captures_;  // the one that was used last is the last
  std::map<std::string, Kind> kinds_;               // of calls without a program
};

}  // namespace tessera
