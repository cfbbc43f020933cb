export module tessera.train:captured_evaluation;

import tessera.base;
import tessera.program;
import tessera.execute;
import tessera.graph;
import :step;

namespace tessera {
class EagerSteps;
}

export namespace tessera {

/// The captured evaluation of a training, Training::captured_evaluation().
class CapturedEvaluation {
 public:
  explicit CapturedEvaluation(EagerSteps& steps) : steps_(steps) {}

  /// The evaluation of one micro-batch of such batches as a program, recorded: its section
  /// "evaluation" computes the output "loss", the sum of the losses of the rows, and those of
  /// StepSums::measured. No values are read, so the model may be on the meta device.
  Program record(const StepBatch& batch, const StepFunctions& functions) const;
  /// Training::evaluate uses this program from now on. `execution`: that of the steps, of which the
  /// evaluation has what graph::without_changes() leaves. The program's memory is free between
  /// evaluations.
  void set_program(Program program, const graph::ExecutionOptions& execution);
  bool has_program() const { return static_cast<bool>(executor_); }

 private:
  friend class Training;
  Evaluation evaluate(std::int64_t batches, const StepBatch& batch, const StepFunctions& functions);

  EagerSteps& steps_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace tessera
