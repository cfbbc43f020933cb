module tessera.graph:gradient_sums;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.dtensor;
import tessera.program;

namespace tessera::graph {

/// The sums of gradients over the ranks of a mesh, as calls on local tensors that are issued and
/// waited for. Gradients that backward completes one after the other are summed together, in groups
/// of about `group_bytes`: into shards along the last axis where the parameters are sharded, and
/// then over the other axes. A call is waited for before the next one is issued, so that backward
/// hides it.
class GradientSums {
 public:
  /// `tensors`: gets the sums.
  GradientSums(const DeviceMesh& mesh, ByTensor<Tensor>& tensors, std::int64_t group_bytes);

  /// Adds a gradient, whose backward has completed it. `identity`: ranks compare it. `replaced`: a
  /// sum that is not sharded may take the place of the gradient's terms.
  void add(TensorIndex number, const Layout& to, std::uint64_t identity, bool replaced);
  /// Issues the sum of what was added; called where an update has all of its gradients.
  void issue();
  /// Called before anything else uses the tensor: its sum is there then.
  void complete(TensorIndex number);
  void complete_all();

 private:
  struct WaitingGradient {
    TensorIndex number;
    Layout to;
    std::uint64_t identity;
  };
  /// A call in progress.
  struct SumInFlight {
    std::vector<WaitingGradient> gradients;
    GradientBucket bucket;  // of their local parts
    int next_axis;          // to be summed over; -1: none
    std::int64_t identity;
  };

  bool is_open(TensorIndex number) const;
  void collect(TensorIndex number, const Layout& to, std::uint64_t identity);
  /// Waits for what is in progress, and issues the sums over the next axis.
  void advance();

  DeviceMesh mesh_;
  ByTensor<Tensor>& tensors_;
  std::int64_t group_bytes_;
  std::vector<WaitingGradient> waiting_;
  std::int64_t waiting_bytes_ = 0;
  std::vector<SumInFlight> flights_;
};

}  // namespace tessera::graph
