export module tessera.parallel:gradients;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.nn;

namespace tessera::parallel {

struct SumsByTree;

}  // namespace tessera::parallel

export namespace tessera::parallel {

/// Whether the current backward is the last one before the optimizer. If it is not (gradient
/// accumulation), nothing is reduced in backward that the next one would have to reduce again. Per
/// thread; initially true.
bool gradient_sync_enabled();
class GradientSyncScope {
 public:
  explicit GradientSyncScope(bool enabled);
  ~GradientSyncScope();
  GradientSyncScope(const GradientSyncScope&) = delete;
  GradientSyncScope& operator=(const GradientSyncScope&) = delete;

 private:
  bool before_;
};

/// Within the scope micro-batches of one step, or of one evaluation, are computed in an order in
/// which forwards follow one another. What is written into parameters between two of them is
/// written by all ranks or by none, so that a style need not ask the others. Per thread.
class MicroBatchesScope {
 public:
  MicroBatchesScope();
  ~MicroBatchesScope();
  MicroBatchesScope(const MicroBatchesScope&) = delete;
  MicroBatchesScope& operator=(const MicroBatchesScope&) = delete;

 private:
  std::uint64_t before_;
};
/// The number of the scope, another one for each; 0: there is none.
std::uint64_t micro_batches_scope();

/// Leaves first to first + count - 1 of the binary tree ((0 1) (2 3)) ((4 5) (6 7)): the virtual
/// shards of a step, of which ranks compute some at once.
struct Leaves {
  std::int64_t first = 0;
  std::int64_t count = 0;
  friend bool operator==(const Leaves&, const Leaves&) = default;
};
/// The fewest nodes of the tree that have just these leaves, in order: of leaves 3 to 7, they are
/// 3, (4 5) (6 7). Each has a power of two of leaves.
std::vector<Leaves> tree_nodes(Leaves leaves);

/// Within the scope gradients are summed over the ranks of a mesh as nodes of the tree, so that the
/// sums of ranks and of micro-batches together do not depend on the number of ranks. The ranks
/// along the batch, in their order, have a leaf each; there may be fewer leaves than ranks, and
/// what the last ones have is no part of any sum. Where the ranks' leaves are several nodes, so are
/// their sums: the last one becomes a parameter's gradient, and those before it are in
/// take_earlier_sums(). Per thread.
class SumsByTreeScope {
 public:
  /// `batch_axes` of the mesh: all but the first that has several ranks have a power of two of them
  /// together, which divides `leaves.first` and `leaves.count`.
  SumsByTreeScope(const DeviceMesh& mesh, std::span<const int> batch_axes, const Leaves& leaves);
  ~SumsByTreeScope();
  SumsByTreeScope(const SumsByTreeScope&) = delete;
  SumsByTreeScope& operator=(const SumsByTreeScope&) = delete;

 private:
  std::unique_ptr<SumsByTree> sums_;
  const SumsByTree* before_;
};
/// How a style sums gradients over the ranks of these axes: the terms of each sum, among the ranks
/// of the group. Outside of a scope, and where the ranks' leaves are one node, this is one sum of
/// all.
std::vector<collective::MemberRange> terms_of_sums(std::span<const int> axes);
/// Adds a sum that precedes the one which becomes the parameter's gradient.
void add_earlier_sum(nn::Parameter& parameter, Tensor sum);
/// Takes them, in order.
Tensors take_earlier_sums(nn::Parameter& parameter);

/// Adds to a parameter's gradient outside of autograd, for a style that keeps the parameter in
/// memory of its own and computes with another tensor. `complete`: backward adds nothing more to
/// it in this step. `gradient` has the parameter's type; its layout may be Partial where the
/// parameter is Replicate.
void add_to_gradient(nn::Parameter& parameter, Tensor gradient, bool complete);

/// Redistributes every gradient to its parameter's layout after the last backward of a step. A
/// gradient that is Partial where its parameter is Replicate is summed over the ranks in place,
/// many of them in one all-reduce (a bucket); any other difference is redistributed by itself.
/// Where begin() was called, the sum of a bucket is issued in backward as soon as its gradients are
/// complete. Gradients that are kept over several steps add up.
class GradientFinisher {
 public:
  GradientFinisher();
  ~GradientFinisher();
  GradientFinisher(const GradientFinisher&) = delete;
  GradientFinisher& operator=(const GradientFinisher&) = delete;

  /// Before the first backward of a step: from here to finish(), backward issues sums, and the
  /// gradients are complete only in finish(). Sums of a step that ended by an error end first.
  /// `begun`: counts the steps of whoever calls; in a step that is recorded, the number of its sums
  /// follows from it.
  void begin(std::span<const nn::ParameterPointer> parameters, const Count& begun = 0);
  /// Errors: a parameter has a gradient on some ranks only (one small all-reduce finds it).
  void finish(std::span<const nn::ParameterPointer> parameters);
  /// Counts a step whose sums something else has issued. Sums have the number of their step.
  void count_step();

 private:
  class Sums;
  std::shared_ptr<Sums> sums_;  // hooks of leaves hold it weakly
};

}  // namespace tessera::parallel
