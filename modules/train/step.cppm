export module tessera.train:step;

import tessera.base;
import tessera.tensor;

export namespace tessera {

/// Values of the host that decide how a step goes and are known before it: a flag, a stage, a
/// temperature that the body uses as a constant. Steps with other values get programs of their
/// own. The same on all ranks. (A value that is computed within the step: see guard().)
using StepGuards = std::map<std::string, double>;

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
  /// No step follows at once: the update is made in this one, not left to the next one (see
  /// CapturedSteps::set_enabled). Where it is not set, saves, evaluations and state() make it.
  bool last_train_step = false;
};

/// Parts into which a step is cut whatever the number of ranks, so that its bits do not depend on
/// the layout: see Training::set_virtual_shards.
struct VirtualShards {
  std::int64_t batch = 0;     // of the rows of a step. 0: it is not cut
  std::int64_t features = 1;  // of the dims of weights; a power of two. 1: they are not cut
};
/// What is wrong with the numbers of virtual shards, whatever the model and its layout are. Empty:
/// nothing.
std::string problem_of(const VirtualShards& shards);

/// What one forward and backward computes: rows first to first + rows - 1 of the rows of the whole
/// step, which are of this rank's part.
struct BatchPart {
  std::int64_t step = 0;  // from 0; in an evaluation, the number of the batch
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

/// One forward and backward of a rank.
struct MicroPart {
  BatchPart batch;
  std::int64_t number = 0;
  bool last = false;
};

/// Which rows of a step a rank computes, in micro-batches one after the other.
struct RowDivision {
  std::int64_t part = 0;   // of this rank
  std::int64_t first = 0;  // of the rows of the whole step
  std::int64_t micro = 0;
  bool equal = false;       // every rank has as many
  std::int64_t stride = 0;  // from the first row of a micro-batch to that of the next one
  std::int64_t all = 0;     // of the whole step

  /// At least 1: a rank without rows takes part too.
  std::int64_t micro_batches() const { return part == 0 ? 1 : part / micro; }
  /// The rows of a micro-batch that follow those of the step, on all ranks together.
  std::int64_t padding(std::int64_t number) const {
    return std::max<std::int64_t>(0, (number + 1) * stride - all);
  }
  /// The virtual shards that the ranks compute as this micro-batch.
  LeafRange shards(std::int64_t number) const;
  /// Micro-batch number `number` of this rank.
  MicroPart at(std::int64_t step, std::int64_t number) const;
  /// Calls `body` for each micro-batch of this rank, in order.
  void each(std::int64_t step, const std::function<void(const MicroPart&)>& body) const;
};

/// Runs the model: the SUM of the losses of the micro-batch's rows, as a scalar. The batch is
/// distributed in the plan's batch_layout(), so the sum is Partial along the axes that split the
/// batch; no number of ranks occurs anywhere.
using LossSum = std::function<Tensor(const BatchPart&)>;

/// Sums over the rows of a micro-batch: of their losses, and of what is measured besides. All are
/// scalars of one kind; see LossSum.
struct StepSums {
  StepSums() = default;
  StepSums(Tensor loss_sum, Tensors measured_sums = {})
      : loss(std::move(loss_sum)), measured(std::move(measured_sums)) {}

  Tensor loss;
  Tensors measured;  // as many in each step; they get no gradient
};

/// The same in two functions, so that a step can be replayed: all that differs from step to step
/// must be in the rows.
struct StepFunctions {
  /// This rank's rows of the micro-batch as local tensors: tokens, targets, masks. Of a model in
  /// stages, all stages give tensors of the same shapes.
  std::function<Tensors(const BatchPart&)> rows;
  std::function<StepSums(const Tensors& rows)> loss_sum;
  /// Of a model that is divided into stages (parallel::Stages), for stages that do not end it: the
  /// hidden states of the rows, nn::LanguageModel::states().
  std::function<Tensor(const Tensors& rows)> states = {};
  StepGuards guards = {};  // other values than before: another program
};

/// Results of a training step.
struct StepResult {
  double loss = 0;  // the sum of all losses of the step divided by its weight, before the update
  double grad_norm = 0;  // of the whole model, before clipping
  double lr = 0;
  /// The gradients were not finite, or the guard of updates refused the step: parameters and
  /// optimizer are as before.
  bool skipped = false;
  bool refused = false;  // by the guard
  /// StepSums::measured of the step, divided by its weight.
  std::vector<double> measured = {};
};

/// Looks at a step before its update; true: the update is not made (StepResult::refused). Loss and
/// norm may not be finite. It is called on all ranks with the same numbers, and must answer alike.
using UpdateGuard = std::function<bool(const StepResult& result)>;

/// An evaluation: the sums over all rows of its batches, divided by its weight.
struct Evaluation {
  double loss = 0;
  std::vector<double> measured = {};
};

}  // namespace tessera
