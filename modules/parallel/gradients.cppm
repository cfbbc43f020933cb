export module tessera.parallel:gradients;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.nn;

export namespace tessera::parallel {

/// StepContext::sums_gradients of the calling thread.
bool gradient_sync_enabled();

/// The fewest nodes of the tree that have just these leaves, in order: of leaves 3 to 7, they are
/// 3, (4 5) (6 7). Each has a power of two of leaves.
std::vector<LeafRange> tree_nodes(LeafRange leaves);

/// Sums by the tree along these axes of the mesh, those that split the batch; see TreeSums.
TreeSums tree_sums(const DeviceMesh& mesh, std::span<const int> batch_axes,
                   const LeafRange& leaves);
/// How a style sums gradients over the ranks of these axes: the terms of each sum, among the ranks
/// of the group. Without StepContext::tree_sums, and where the ranks' leaves are one node, this is
/// one sum of all. Where they are several nodes, so are the sums: the last one becomes a
/// parameter's gradient, and those before it are in take_earlier_sums().
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
