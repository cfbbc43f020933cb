export module tessera.runs:own_task;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.optim;
import tessera.train;
import :task;

// A program's own task, as functions.

export namespace tessera::runs {

/// A model of the program's own, its rows and its loss. Before the ranks start, all of it is also
/// computed on the meta device, without values: what a loss reads on the host is 1 there.
struct TaskFunctions {
  /// The model, without memory (on the meta device); it need not have names yet.
  std::function<std::shared_ptr<nn::Module>()> model = {};
  /// This rank's rows of a step, part.first to part.first + part.rows - 1, as plain tensors whose
  /// dim 0 has part.rows entries. A function of its argument alone: so a run continues exactly.
  std::function<Tensors(const BatchPart& part)> rows = {};
  /// The SUM of the losses of the rows. They come as distributed tensors; so does the sum.
  std::function<Tensor(nn::Module& model, const Tensors& rows)> loss_sum = {};
  /// Tokens of a row: a step's loss is the mean over train.batch * row_tokens, which a schedule by
  /// tokens counts. Where styles split sequences, dim 1 of tensors of this size is split.
  std::int64_t row_tokens = 1;

  /// First values of the parameters, which have their layouts; null: nn::initialize.
  std::function<void(nn::Module& model)> initialize = {};
  /// Null: that of the description.
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<nn::ParameterPointer>)> optimizer =
      {};
  /// Values of a step (from 0) that select its program: see StepGuards. The same on all ranks.
  std::function<StepGuards(std::int64_t step)> guards = {};
  /// Of a stage that does not end the model, which is an nn::LanguageModel: its hidden states.
  std::function<Tensor(nn::Module& model, const Tensors& rows)> states = {};
  /// Batches of train.batch rows in a validation, and the rows of batch part.step.
  std::int64_t validation_batches = 0;
  std::function<Tensors(const BatchPart& part)> validation_rows = {};
};

/// Error (input): a function is missing, or a number is too small.
std::shared_ptr<const Task> task_of(TaskFunctions functions);

}  // namespace tessera::runs
