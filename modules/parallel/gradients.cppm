export module tessera.parallel:gradients;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.ops;
import tessera.nn;

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
