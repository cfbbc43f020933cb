export module tessera.runs:task;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.train;
import :spec;
import :fingerprint;
import :metrics;
import :row_history;

// What a run trains: a model, its rows and its losses. How it is trained is the same for all tasks.

export namespace tessera::runs {

class FrozenCopy;

/// The losses of a micro-batch.
struct WatchedLosses {
  Tensor
      losses;  // of each token [rows, T], or of each row [rows], distributed as they are computed
  std::vector<nn::LossTerm> terms = {};  // what is added to their sum, in this order
  Tensor sum;                            // the result
};
using LossWatch = std::function<void(const WatchedLosses& watched)>;

/// A task on one rank. Model and plan live as long.
class RankTask {
 public:
  virtual ~RankTask() = default;

  /// Called once, when the model has its first values and the styles know it.
  virtual void initialized() {}
  /// This rank's rows of a micro-batch of step part.step (from 0), as local tensors; on the meta
  /// device tensors of their shapes and types. See StepFunctions::rows.
  virtual Tensors rows(const BatchPart& part) = 0;
  /// The same of batch part.step of a validation. Error: the task has no validation.
  virtual Tensors validation_rows(const BatchPart& part);
  /// Sums over the rows of a micro-batch, which are local tensors.
  virtual StepSums sums(const Tensors& rows) = 0;
  /// Of a stage that does not end the model: its hidden states. Error: the task is not computed by
  /// stages.
  virtual Tensor states(const Tensors& rows);
  /// Values that select the program of a step; see StepGuards.
  virtual StepGuards guards(std::int64_t step) const;
  /// What the sums of a step of `rows` rows are divided by.
  virtual double weight(std::int64_t step, std::int64_t rows) const = 0;
  /// The same of so many batches of a validation, `rows` rows each.
  virtual double validation_weight(std::int64_t batches, std::int64_t rows) const = 0;
  /// Values of StepResult::measured, for reports.
  virtual Measures measures(std::span<const double> measured) const;
  /// What is minimised, for the table before the first step; empty: what the table says anyway.
  virtual std::string text() const { return ""; }
  /// Which rows steps take, for who leaves out others; null: the rows are not those of files.
  virtual RowHistory* history() { return nullptr; }
  /// From now on `watch` is called in sums(), without gradients; null: not any more. False: the
  /// task cannot tell the losses of its rows.
  virtual bool watch_losses(LossWatch watch);
  /// Another model that the sums read; null: none.
  virtual const FrozenCopy* frozen_copy() const { return nullptr; }
};

/// What a run trains. All ranks have the same task, which is constant while they run.
class Task {
 public:
  virtual ~Task() = default;

  /// The model without memory (on the meta device), before styles, freezing and types of
  /// parameters. Errors (input): the description asks for what this model does not have.
  virtual std::shared_ptr<nn::Module> model(const RunSpec& spec) const = 0;
  /// Whether blocks of the model compute their activations again in backward; false: it has no
  /// blocks that can.
  virtual bool set_activation_checkpointing(nn::Module& model, bool enabled) const;
  /// An optimizer of the task's own; null: that of the description.
  virtual std::unique_ptr<optim::Optimizer> optimizer(
      const std::vector<nn::ParameterPointer>& parameters) const;
  /// Gives the parameters, which have memory, their first values. `model` has its styles.
  virtual void initialize(const RunSpec& spec, nn::Module& model) const;
  /// The task on the calling rank, whose model has its styles but no memory yet. `mesh`: of the
  /// step; the plan's is that of a stage.
  virtual std::unique_ptr<RankTask> on_rank(const RunSpec& spec, const DeviceMesh& mesh,
                                            nn::Module& model, const parallel::ParallelPlan& plan,
                                            Device device) const = 0;
  /// Whether ranks may have different numbers of rows, of a batch that they do not divide; without
  /// micro-batches and parts of sequences.
  virtual bool divides_unevenly() const { return false; }
  /// Batches in a validation; 0: there is none.
  virtual std::int64_t validation_batches() const { return 0; }

  /// What determines the run's loss curve.
  virtual Fingerprint fingerprint(const RunSpec& spec) const = 0;
  /// For a fingerprint of an earlier version, which lacks some keys: the values that runs of that
  /// version had there.
  virtual Fingerprint earlier_values(const Fingerprint& own) const;
  /// Members of a checkpoint's meta data: names and JSON texts.
  virtual std::vector<std::pair<std::string, std::string>> checkpoint_meta() const;
  /// Keeps files beside the checkpoints in `folder`; called on rank 0.
  virtual void keep_files(const std::string& folder) const;
  /// What the run's checkpoints leave out (CheckpointBase), with the hash `base_hash`; null:
  /// nothing. `model` has its styles.
  virtual std::shared_ptr<const CheckpointBase> checkpoint_base(const RunSpec& spec,
                                                                const std::string& base_hash,
                                                                nn::Module& model) const;
  /// Checks the files of first values against the model. `values`: what they hold too.
  /// `base_hash`: of what checkpoints name, where it is known. Errors (input), each with the key.
  virtual void check_files(const RunSpec& spec, nn::Module& model, bool values,
                           const std::string& base_hash) const;
};

}  // namespace tessera::runs
