module;
#include <optional>
export module tessera.dtensor:convert;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;

export namespace tessera {

/// Cuts this rank's part out of `x`, of which every rank holds an equal copy. No communication. A
/// leaf: it requires a gradient when `x` does. Errors: the layout has Partial, or shards a dim that
/// x lacks.
Tensor distribute(const Tensor& x, const Layout& layout);
/// The same for the copy of global rank `source`; other ranks' x gives only shape and type. One
/// broadcast.
Tensor distribute_from(const Tensor& x, const Layout& layout, int source);

/// The distributed tensor of which `local` is this rank's part. `shape` is the global shape;
/// without it every sharded dim must divide evenly. Gradients flow to `local`. Errors: local's
/// shape is not this rank's part of `shape`.
Tensor from_local(const Tensor& local, const Layout& layout,
                  std::optional<Dims> shape = std::nullopt);

/// This rank's part. Gradients flow back in layout `gradient`; it may be left out where it follows:
/// Shard (the same) and Partial (Replicate). Errors: x is Replicate on an axis, needs a gradient,
/// and `gradient` is missing: ranks may use the value differently, and only the caller knows.
Tensor to_local(const Tensor& x, std::optional<Layout> gradient = std::nullopt);

/// The same value in another layout of the same mesh; the one door to communication. The gradient
/// comes back in layout `gradient`, also when the forward moves nothing; default: x's layout with
/// Replicate for Partial.
Tensor redistribute(const Tensor& x, const Layout& to,
                    std::optional<Layout> gradient = std::nullopt);
/// The same with one axis changed.
Tensor redistribute_axis(const Tensor& x, int axis, Placement to);

/// The whole value as a plain tensor on every rank of the mesh.
Tensor full_tensor(const Tensor& x);

// Factories make only the local part.
Tensor distributed_empty(const Dims& shape, const Layout& layout, DType dtype = DType::f32,
                         Device device = cpu);
Tensor distributed_zeros(const Dims& shape, const Layout& layout, DType dtype = DType::f32,
                         Device device = cpu);
Tensor distributed_full(const Dims& shape, double value, const Layout& layout,
                        DType dtype = DType::f32, Device device = cpu);

/// The communicator along one axis (several: row-major) of a mesh through the calling rank.
collective::Communicator& communicator(const DeviceMesh& mesh, int axis);

/// The layout's gradient: Partial becomes Replicate, all else stays.
Layout gradient_layout(const Layout& layout);

}  // namespace tessera
