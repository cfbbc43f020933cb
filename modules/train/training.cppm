export module tessera.train:training;

import tessera.base;
import tessera.checkpoint;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :captured_evaluation;
import :captured_steps;
import :stage_states;
import :step;
import :training_checkpoints;

namespace tessera {
class EagerSteps;
}

export namespace tessera {

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
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  /// Instead of the constructor's max_norm. Error (input): see Clipping::check.
  void set_clipping(const optim::Clipping& clipping);
  /// Multiplies the losses by a factor and divides the gradients by it, so that gradients in f16
  /// stay in its range. A step whose gradients are not finite is skipped: the optimizer counts no
  /// step, the rows and the schedule move on, and the factor falls.
  void set_loss_scaling(const optim::GradScalerOptions& options);
  /// Steps give the same bits in every layout: each micro-batch has one virtual shard of the rows,
  /// the sums over micro-batches and ranks follow one binary tree over the virtual shards, and
  /// losses and norms are summed exactly. Where the ranks along the batch do not divide
  /// `shards.batch`, some of them compute nothing new in the last micro-batch. Before the first
  /// step. Errors (input): see problem_of(); more ranks than shards, or ranks along several axes
  /// of which those after the first are not a power of two that divides the shards; a plan with
  /// stages; a sharding whose sums have another order.
  void set_virtual_shards(const VirtualShards& shards);
  /// Which steps are taken without their update, besides those whose gradients are not finite. A
  /// step that is refused is skipped as those are: data and schedule move on. Null: none is.
  void set_update_guard(UpdateGuard guard);
  /// The rows of such a step that this rank computes. Errors: see step().
  RowDivision division(const StepBatch& batch) const;
  /// Null: losses are not scaled.
  const optim::GradScaler* scaler() const;

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
  /// The same, and captured where captured().set_enabled(true) was called: numbers that the host
  /// computes and that are not of a Number are constants of the program then. Errors: see
  /// program_of.
  StepResult step(const StepBatch& batch, const StepFunctions& functions);
  /// Of a stage's model on the meta device, before its first step: where it finds and leaves the
  /// forms of hidden states.
  void set_planned_states(std::shared_ptr<StageStates> planned);
  /// Another model that the losses read and that is not trained, such as a frozen copy, with the
  /// plan that was applied to it: what it has is an input of captured steps, and is not saved. It
  /// must live as long. Before the first step.
  void add_model(nn::Module& model);
  /// The sum of all losses of `batches` batches divided by `batch.weight`, which is that of all of
  /// them, in evaluation mode and without gradients. The model has its training mode again
  /// afterwards, also when it throws. Error: the loss is not finite.
  double evaluate(std::int64_t batches, const StepBatch& batch, const LossSum& loss_sum);
  /// The same, by the program of captured_evaluation() if there is one: its rows are
  /// `functions.rows`.
  Evaluation evaluate(std::int64_t batches, const StepBatch& batch, const StepFunctions& functions);
  /// The sum of `mine` over the parts of the batch: of tokens that are not masked, for example.
  /// One small all-reduce along each axis that splits the batch. Ranks among which sequences are
  /// split have the same rows: `mine` is of all of their tokens.
  double total(double mine) const;

  std::int64_t done() const;
  /// The sum of StepBatch::tokens of the steps that are done.
  std::int64_t tokens() const;
  /// Steps that were skipped; done() counts them too.
  std::int64_t skipped() const;
  optim::Optimizer& optimizer();
  nn::Module& model();
  const parallel::ParallelPlan& plan() const;

  /// How steps are captured and replayed.
  CapturedSteps& captured() { return *captured_; }
  const CapturedSteps& captured() const { return *captured_; }
  CapturedEvaluation& captured_evaluation() { return *evaluation_; }
  /// The state, saved and loaded.
  TrainingCheckpoints& checkpoints() { return *checkpoints_; }

 private:
  std::unique_ptr<EagerSteps> steps_;
  std::unique_ptr<CapturedSteps> captured_;
  std::unique_ptr<CapturedEvaluation> evaluation_;
  std::unique_ptr<TrainingCheckpoints> checkpoints_;
};

/// The bytes of a plan's parameters that this rank keeps in memory that all ranks can reach: shards
/// along an axis that splits the batch, which are gathered before they are used.
std::size_t shared_bytes(const parallel::ParallelPlan& plan,
                         std::span<const nn::ParameterPointer> parameters);
/// The bytes that this rank keeps in other places than the device's memory (MemoryPlace).
std::size_t bytes_elsewhere(const optim::Optimizer& optimizer);

}  // namespace tessera
