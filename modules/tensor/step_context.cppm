export module tessera.tensor:step_context;

import tessera.base;
import tessera.device;
import tessera.mesh;

// What a thread computes of a step, for what lies below the step and depends on it: draws, products
// in blocks, sums of gradients.
export namespace tessera {

/// The rows of a training step that one micro-batch holds. The step's rows are cut into `parts`
/// equal parts, one for each rank along the mesh axes that split the batch. The micro-batch holds
/// rows [first, first + rows) of every part, one part after the other.
struct MicroBatch {
  std::int64_t batch = 0;  // rows of the whole step
  std::int64_t parts = 1;
  std::int64_t first = 0;
  std::int64_t rows = 0;  // of each part
  std::int64_t padding =
      0;  // of them, at the end: they fill the micro-batch and are not in the step
};

/// Leaves first to first + count - 1 of the binary tree ((0 1) (2 3)) ((4 5) (6 7)), by which the
/// virtual shards of a step are summed: those that ranks compute at once.
struct LeafRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  friend bool operator==(const LeafRange&, const LeafRange&) = default;
};

/// How gradients are summed so that the number of ranks changes nothing: as nodes of that tree. The
/// ranks along the batch, in their order, have a leaf each; there may be fewer leaves than ranks,
/// and what the last ones have is not part of any sum.
struct TreeSums {
  DeviceMesh mesh;
  /// Those along the batch that have several ranks. All but the first have a power of two of ranks
  /// together, which divides leaves.first and leaves.count.
  std::vector<int> axes = {};
  LeafRange leaves = {};
};

/// What the calling thread computes. A step changes it by StepScope; whoever depends on it reads
/// step_context().
struct StepContext {
  /// Draws by batch row take the numbers that their rows have in the whole step; none: the rows are
  /// those of the whole step. See begin_micro_batch().
  std::optional<MicroBatch> micro_batch = {};
  /// Products of `linear` are cut into blocks of equal size: see ops::linear. A power of two.
  std::int64_t feature_blocks = 1;
  /// The current backward is the last one before the optimizer. If it is not (gradient
  /// accumulation), nothing is reduced in it that the next one would have to reduce again.
  bool sums_gradients = true;
  /// None: each sum over ranks is one sum of all.
  std::optional<TreeSums> tree_sums = {};
  /// Not 0: the step, or the evaluation, whose micro-batches are computed, as new_order() numbered
  /// it. Within one, all ranks write into parameters at the same points, so a style need not ask.
  std::uint64_t order = 0;
  /// The kind of device that is planned for: calls on the meta device book the workspaces of its
  /// kernels, and programs are planned with them.
  DeviceType planned_device = DeviceType::cpu;
};

/// That of the calling thread.
const StepContext& step_context();
/// A number for StepContext::order that no other order of this process has.
std::uint64_t new_order();

/// Within the scope the calling thread's context is changed:
///     const StepScope scope([](StepContext& step) { step.sums_gradients = false; });
/// Scopes end in reverse order. Error: the number of feature blocks is not a power of two.
class StepScope {
 public:
  template <class Change>
    requires requires(const Change& change, StepContext& step) { change(step); }
  explicit StepScope(const Change& change) : own_(step_context()) {
    change(own_);
    enter();
  }
  ~StepScope();
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  void enter();

  StepContext own_;
  const StepContext* before_ = nullptr;
};

}  // namespace tessera
