export module tessera.runs:frozen_copy;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.nn;
import tessera.parallel;
import :spec;
import :task;

// The frozen copy that preferences are compared with.

export namespace tessera::runs {

/// A copy of a run's model that stays as it was when it was filled: with the same styles on the
/// same mesh, in evaluation mode, without gradients and optimizer. A checkpoint does not have it: a
/// run that continues fills it from the same start.
class FrozenCopy {
 public:
  /// On the meta device. Errors (input): what the parallel plan refuses.
  FrozenCopy(const Task& task, const RunSpec& spec, const DeviceMesh& mesh);
  /// Allocates it and copies the values of `model`, another one of the same run.
  void fill(nn::Module& model, Device device);

  nn::Module& model() const { return *model_; }
  const parallel::ParallelPlan& plan() const { return *plan_; }

 private:
  std::shared_ptr<nn::Module> model_;
  std::unique_ptr<parallel::ParallelPlan> plan_;
};

}  // namespace tessera::runs
