module tessera.train:eager_steps;

import tessera.base;
import tessera.tensor;
import tessera.execute;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :micro_batches;
import :step;
import :step_objects;
import :step_plan;

namespace tessera {

/// Sums over all ranks, as local tensors.
struct WholeSums {
  Tensor loss = {};
  Tensors measured = {};

  /// As outputs of a program: "loss", "measured.0" and so on.
  void record(Recorder& recorder) const;
  std::vector<double> measured_values() const;
  /// The values that a program has computed.
  static std::vector<double> measured_in(Executor& executor);
};

/// Takes the steps of a training as they are written, and evaluates. It has what the parts of a
/// training share: model, optimizer, and how far the training is.
class EagerSteps {
 public:
  /// `last_checkpoint`: for the ends of errors; see TrainingCheckpoints::last.
  EagerSteps(nn::Module& trained, parallel::ParallelPlan& applied,
             std::unique_ptr<optim::Optimizer> updater, const optim::Schedule& lr_schedule,
             std::function<std::string()> last_checkpoint);

  nn::Module& model;
  parallel::ParallelPlan& plan;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::Schedule schedule;
  optim::Clipping clipping;
  std::optional<optim::GradScaler> scaler;
  Tensor scale_input;   // the scaler's factor: an input of recorded steps
  StepObjects objects;  // model and optimizer, as programs name them
  parallel::GradientFinisher finisher;
  std::unique_ptr<MicroBatchOrder> order;
  std::int64_t done = 0;
  std::int64_t tokens = 0;
  std::int64_t skipped = 0;
  UpdateGuard update_guard;  // see Training::set_update_guard; null: all updates are made

  /// Errors: see Training::step.
  RowDivision rows_of(const StepBatch& batch) const;
  /// See Training::set_virtual_shards.
  void set_virtual_shards(const VirtualShards& shards);
  const VirtualShards& virtual_shards() const { return shards_; }

  /// The numbers of the next step, of which those of its update follow in it.
  StepPlan plan_of(const StepBatch& batch, const StepGuards& guards,
                   Recorder* recorder = nullptr) const;
  BeforeUpdate before_update(const StepResult& result) const;
  /// `of_step`: its plan_of(). Errors: see Training::step.
  StepResult take(const StepBatch& batch, const StepFunctions& functions, StepPlan& of_step);
  Evaluation evaluate(std::int64_t batches, const StepBatch& batch, const StepFunctions& functions);

  /// Error: one of them is not a distributed scalar.
  static StepSums checked(StepSums sums);
  /// The sums over all ranks.
  WholeSums whole(const StepSums& sums) const;
  double total(double mine) const;
  /// Loss and norm, of a loss and gradients that are scaled. Errors: the loss is not finite; the
  /// norm is not, and such steps are not skipped.
  StepResult checked(const StepBatch& batch, double loss, double power,
                     std::vector<double> measured);
  std::string last_checkpoint() const { return last_checkpoint_(); }
  /// Error: the loss is not finite.
  Evaluation checked(Evaluation evaluation);

  double scale() const { return scaler ? scaler->scale() : 1; }
  /// After the scaler's factor was changed.
  void set_scale();
  void count_step(const StepBatch& batch, const StepResult& result);
  /// The name of the output of a recorded step that the norm is computed from.
  const char* norm_output() const;

 private:
  double lr_of(const StepBatch& batch) const;
  RowDivision shards_of(const StepBatch& batch) const;
  /// The gradients of all micro-batches, and the sums over all ranks, divided by the weight.
  WholeSums gradients(const StepBatch& batch, const RowDivision& rows,
                      const StepFunctions& functions, const StepPlan& of_step);
  void update(const StepPlan& of_step);

  std::function<std::string()> last_checkpoint_;
  VirtualShards shards_;
};

}  // namespace tessera
