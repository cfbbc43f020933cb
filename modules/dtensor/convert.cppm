export module tessera.dtensor:convert;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;

export namespace tessera {

// Layouts that are given as placements alone are of the mesh that the tensor lies on or, for plain
// tensors, of the innermost MeshScope.

/// Cuts this rank's part out of `x`, of which every rank holds an equal copy. No communication
/// forward. A leaf gives a leaf, which requires a gradient when `x` does; a computed `x` gives a
/// computed result, and backward gathers its whole gradient for every rank's copy. Partial axes get
/// terms that reduce to x. A distributed x is redistributed.
/// Error: the layout shards a dim that x lacks.
Tensor distribute(const Tensor& x, const Layout& layout);
Tensor distribute(const Tensor& x, std::initializer_list<Placement> placements);
/// The same for the copy of global rank `source`; other ranks' x gives only shape, type and whether
/// a gradient is required. Each rank is sent its own part and nothing else. Always a leaf.
/// Error: the rank is not in the mesh.
Tensor distribute_from(const Tensor& x, const Layout& layout, int source);

/// The distributed tensor of which `local` is this rank's part; shares its memory. `shape` is the
/// global shape; without it every sharded dim must divide evenly. Gradients flow to `local`: what a
/// change of this rank's part changes, so divided by the ranks for Partial(avg), only to the ranks
/// that hold the extremum for Partial(max) and Partial(min), by the rank's share for a norm.
/// With `run_check` all ranks of the mesh compare notes (one small all-gather): types agree, parts
/// fit together (then `shape` may be left out for uneven shards too), copies are equal bit for bit.
/// Errors: local's shape is not this rank's part of `shape`; what the check finds, with the rank.
Tensor from_local(const Tensor& local, const Layout& layout,
                  std::optional<Dims> shape = std::nullopt, bool run_check = false);

/// This rank's part. Gradients flow back in layout `gradient`; it may be left out where it follows:
/// Shard (the same), Partial(sum) (Replicate), Partial(avg, max, min) (Partial(sum)).
/// Errors: x needs a gradient, `gradient` is missing and x is Replicate on an axis (ranks may use
/// the value differently, and only the caller knows), Partial(product) or a norm's Partial.
Tensor to_local(const Tensor& x, std::optional<Layout> gradient = std::nullopt);

/// The same value in another layout; the one door to communication. The gradient comes back in
/// layout `gradient`, also when the forward moves nothing; default: x's layout with Replicate for
/// Partial. Layouts of two meshes must be of the same ranks, or `to` of some of x's ranks: those
/// that are left out get an undefined tensor.
/// Errors: the layout shards a dim that x lacks, or has a norm's Partial where x has not; the other
/// mesh has ranks that x's has not.
Tensor redistribute(const Tensor& x, const Layout& to,
                    std::optional<Layout> gradient = std::nullopt);
Tensor redistribute(const Tensor& x, std::initializer_list<Placement> to);
/// The same with one axis changed.
Tensor redistribute_axis(const Tensor& x, int axis, Placement to);

/// From one mesh to another, by a message for each box that must move. Every rank of either mesh
/// calls it: those of `from`'s mesh with their x, the others with an undefined tensor. Ranks
/// outside of `to`'s mesh get an undefined tensor. The gradient comes back in from's layout where
/// both meshes have the same ranks.
/// Errors: x is not `from`; a rank of neither mesh; x needs a gradient and the ranks differ (use a
/// NoGrad scope, and send the gradient back by the same call).
Tensor redistribute_between(const Tensor& x, const Spec& from, const Layout& to);

struct RedistributionState;

/// A redistribution under way. What the ranks owe each other was issued; it completes in wait().
/// Destroyed without wait(), what was issued completes and the result is dropped; all ranks must do
/// alike.
class PendingRedistribution {
 public:
  explicit PendingRedistribution(std::unique_ptr<RedistributionState> state);
  PendingRedistribution(PendingRedistribution&&) noexcept;
  PendingRedistribution& operator=(PendingRedistribution&&) noexcept;
  ~PendingRedistribution();

  /// The tensor in the new layout; recorded for backward as redistribute is. All ranks must call
  /// it, in the order in which their redistributions were issued where plans have several
  /// collectives. Cheap after the first time.
  const Tensor& wait();
  /// Whether the collective that was issued has come; further steps of the plan follow in wait().
  bool done();

 private:
  std::unique_ptr<RedistributionState> state_;
};

/// redistribute() that returns before the other ranks have arrived. Steps without communication and
/// the first collective of the plan are issued at once, what follows that one in wait(). x must not
/// be written before.
PendingRedistribution redistribute_async(const Tensor& x, const Layout& to,
                                         std::optional<Layout> gradient = std::nullopt);

/// The whole value as a plain tensor on every rank of the mesh. The gradient comes back in layout
/// `gradient`; default: Replicate, for values that all ranks use alike.
Tensor full_tensor(const Tensor& x, std::optional<Layout> gradient = std::nullopt);

/// A copy with memory of its own, and of its gradient when there is one; layout, and whether it
/// requires a gradient, as they are. A leaf. Plain tensors too.
Tensor deep_copy(const Tensor& x);

/// The communicator along one axis (several: row-major in the order given) of a mesh through the
/// calling rank. Meshes that have a group of ranks in common have its communicator in common; it is
/// made at first use.
collective::Communicator& communicator(const DeviceMesh& mesh, int axis);
collective::Communicator& communicator(const DeviceMesh& mesh, std::span<const int> axes);

/// The layout's gradient: Partial becomes Replicate, all else stays.
Layout gradient_layout(const Layout& layout);

}  // namespace tessera
