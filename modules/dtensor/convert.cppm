export module tessera.dtensor:convert;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;

export namespace tessera {

// A layout that consists of placements only is on the mesh of the tensor or, for plain tensors, on
// the mesh of the innermost MeshScope.

/// Cuts this rank's part out of `x`, of which every rank has an equal copy. The forward does not
/// communicate. A leaf gives a leaf, which requires a gradient if `x` does; a computed `x` gives a
/// computed result, and backward gathers the whole gradient for every rank's copy. On Partial axes
/// the ranks get terms that reduce to x. A distributed x is redistributed.
/// Error: the layout shards a dim that x does not have.
Tensor distribute(const Tensor& x, const Layout& layout);
Tensor distribute(const Tensor& x, std::initializer_list<Placement> placements);
/// Distributes the copy of global rank `source`; the x of the other ranks provides only the shape,
/// the type and whether a gradient is required. Each rank receives only its own part. Always a
/// leaf.
/// Error: the rank is not in the mesh.
Tensor distribute_from(const Tensor& x, const Layout& layout, int source);

/// The distributed tensor of which `local` is this rank's part; shares its memory. `shape` is the
/// global shape; without it every sharded dim must divide evenly. `local` receives the gradient
/// with respect to this rank's part: divided by the number of ranks for Partial(avg), only on the
/// ranks that have the extremum for Partial(max) and Partial(min), weighted by the rank's share for
/// a norm.
/// With `run_check` all ranks of the mesh check (with one small all-gather) that types agree, that
/// parts fit together (`shape` is then optional for uneven shards too), and that copies are
/// bit-identical.
/// Errors: local's shape is not the shape of this rank's part of `shape`; a failed check, with the
/// rank.
Tensor from_local(const Tensor& local, const Layout& layout,
                  std::optional<Dims> shape = std::nullopt, bool run_check = false);

/// This rank's part. The gradient has layout `gradient`; it is optional where x's placement
/// determines it: Shard (the same), Partial(sum) (Replicate), Partial(avg, max, min)
/// (Partial(sum)). Errors: x needs a gradient, `gradient` is missing and x is Replicate on an axis
/// (ranks may use the value differently, and only the caller knows), Partial(product) or a norm's
/// Partial.
Tensor to_local(const Tensor& x, std::optional<Layout> gradient = std::nullopt);

/// Brings the value into another layout; all conversions that communicate use it. The gradient
/// has layout `gradient`, even if the forward moves nothing; default: x's layout with Replicate
/// instead of Partial. If the meshes differ, they must have the same ranks, or `to` a subset of x's
/// ranks: the other ranks get an undefined tensor.
/// Errors: the layout shards a dim that x does not have, or contains a Partial norm where x has
/// none; the other mesh has ranks that x's mesh does not have.
Tensor redistribute(const Tensor& x, const Layout& to,
                    std::optional<Layout> gradient = std::nullopt);
Tensor redistribute(const Tensor& x, std::initializer_list<Placement> to);
/// Changes one axis of the layout.
Tensor redistribute_axis(const Tensor& x, int axis, Placement to);

/// From one mesh to another, with one message per box of elements. Every rank of either mesh calls
/// it: the ranks of `from`'s mesh with their x, the others with an undefined tensor. Ranks
/// outside of `to`'s mesh get an undefined tensor. The gradient has from's layout if both meshes
/// have the same ranks. Errors: x is not `from`; a rank of neither mesh; x needs a gradient and the
/// ranks differ (use cross_meshes).
Tensor redistribute_between(const Tensor& x, const Spec& from, const Layout& to);

struct RedistributionState;

/// A redistribution in progress: its first collective was issued, and wait() completes it. If it is
/// destroyed without wait(), the issued collective completes and the result is dropped; all ranks
/// must do the same.
class PendingRedistribution {
 public:
  explicit PendingRedistribution(std::unique_ptr<RedistributionState> state);
  PendingRedistribution(PendingRedistribution&&) noexcept;
  PendingRedistribution& operator=(PendingRedistribution&&) noexcept;
  ~PendingRedistribution();

  /// The tensor in the new layout; recorded for backward like redistribute(). All ranks must call
  /// it, and if plans have several collectives, in the order in which the redistributions were
  /// issued. Cheap after the first call.
  const Tensor& wait();
  /// Whether the issued collective has completed; wait() takes the remaining steps of the plan.
  bool done();

 private:
  std::unique_ptr<RedistributionState> state_;
};

/// redistribute() that does not wait for the other ranks. It takes the local steps and issues the
/// first collective of the plan; wait() does the rest. x must not be written before wait() returns.
PendingRedistribution redistribute_async(const Tensor& x, const Layout& to,
                                         std::optional<Layout> gradient = std::nullopt);

/// The whole value as a plain tensor on every rank of the mesh. The gradient has layout
/// `gradient`; default: Replicate, for values that all ranks use in the same way.
Tensor full_tensor(const Tensor& x, std::optional<Layout> gradient = std::nullopt);

/// A leaf with its own memory and with copies of x and of its gradient, if it has one. Keeps the
/// layout and whether a gradient is required. Works for plain tensors too.
Tensor deep_copy(const Tensor& x);

/// The communicator of the calling rank along one axis of a mesh (several axes: row-major in the
/// given order). Meshes that share a group of ranks share its communicator. It is created at first
/// use.
collective::Communicator& communicator(const DeviceMesh& mesh, int axis);
collective::Communicator& communicator(const DeviceMesh& mesh, std::span<const int> axes);

/// The layout of the gradient: Partial becomes Replicate, the other placements are kept.
Layout gradient_layout(const Layout& layout);

}  // namespace tessera
