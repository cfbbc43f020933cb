// How the micro-batches of a step are computed: one after the other, or by the stages of a model.
module tessera.train:micro_batches;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.parallel;
import :step;
import :stage_states;

namespace tessera {

/// A micro-batch that was computed forward.
struct MicroLoss {
  Tensor root;    // backward begins here
  StepSums sums;  // divided by the step's weight; without a graph
};

/// The micro-batches of a step, or of a batch of an evaluation, of this rank.
struct MicroBatches {
  std::int64_t step = 0;  // how many steps are done
  std::int64_t count = 1;
  std::string guards = {};    // with their values, as a text
  RandomPosition start = {};  // of the step's draws
  /// Which rows of the step they are, for draws; none: those of the whole step.
  std::function<std::optional<MicroBatch>(std::int64_t number)> place = {};
  /// With virtual shards: those that the ranks along the batch compute as this micro-batch. Ranks
  /// for which there is none compute what others do, and nothing of it is used.
  std::function<LeafRange(std::int64_t number)> shards = {};
  /// This rank's rows.
  std::function<Tensors(std::int64_t number)> rows = {};
  std::function<MicroLoss(const Tensors& rows)> loss = {};
  /// Of a stage that does not end the model: its hidden states.
  std::function<Tensor(const Tensors& rows)> states = {};
};

class MicroBatchOrder {
 public:
  virtual ~MicroBatchOrder();
  /// Forward and backward of all of them; styles reduce gradients in the last backward. Returns
  /// this rank's sums.
  virtual StepSums gradients(const MicroBatches& all) = 0;
  /// Forward of all of them.
  virtual StepSums evaluation(const MicroBatches& all) = 0;
  /// The sums over all ranks of what one of the two returned, as local tensors.
  virtual StepSums whole(const StepSums& sums) = 0;
  /// When the gradients of this rank's parameters are complete: those that other ranks' parameters
  /// have a part of.
  virtual void finish(std::span<const nn::ParameterPointer> parameters) = 0;
  /// See optim::gradient_norm_power; of the whole model.
  virtual Tensor norm_power(std::span<const nn::ParameterPointer> parameters, double p) = 0;
  /// See StageStates.
  virtual void set_planned(std::shared_ptr<StageStates> planned) = 0;
  /// On the meta device: whether steps there are those of all stages, as nothing is left to guess.
  virtual bool is_planned() const = 0;
};

/// One after the other.
std::unique_ptr<MicroBatchOrder> one_after_the_other(const parallel::ParallelPlan& plan);
/// As the schedule of the plan's stages says. Error: the model is not an nn::LanguageModel.
std::unique_ptr<MicroBatchOrder> by_stages(nn::Module& model, const parallel::ParallelPlan& plan);

/// One after the other, so that the bits of gradients and sums do not depend on how many ranks
/// share the micro-batches of a step: the gradients of each are summed over the ranks in `finish`,
/// those of several follow a binary tree, and losses and norms are summed exactly. `parameters` are
/// those that the training updates.
std::unique_ptr<MicroBatchOrder> in_a_tree(
    const parallel::ParallelPlan& plan, std::vector<nn::ParameterPointer> parameters,
    std::function<void(std::span<const nn::ParameterPointer>)> finish);

/// Adds the sums of a micro-batch to those of the ones before.
void add_sums(StepSums& all, const StepSums& part);
/// The sums over all ranks of the plan's mesh, as local tensors.
StepSums summed_on_mesh(const StepSums& sums, const parallel::ParallelPlan& plan);

}  // namespace tessera
