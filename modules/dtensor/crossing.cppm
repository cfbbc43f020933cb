export module tessera.dtensor:crossing;

import tessera.base;
import tessera.placement;
import tessera.tensor;

export namespace tessera {

/// A rank's side of a tensor that went to another mesh.
struct Crossing {
  /// The tensor in its new layout; undefined on ranks that the new mesh does not have.
  Tensor value;
  /// On ranks that only the old mesh has, in the place of a loss: a scalar whose backward()
  /// receives the gradient and continues with it. Undefined on all others, and where no gradient
  /// comes back.
  Tensor root;
};

/// redistribute_between() with a gradient, for pipelines: the value goes to the other mesh in the
/// forward, its gradient comes back in the backward, to `from`'s layout with Replicate instead of
/// Partial. Every rank of either mesh calls it, and then backward(): with a loss that depends on
/// `value`, or with `root`. All ranks must call both in one order; a rank that does not is reported
/// when the others have waited for their timeout. The gradient cannot be differentiated again.
/// Errors: those of redistribute_between(); `needs_gradient` differs from x's requires_grad();
/// it is true for a type that is not floating.
Crossing cross_meshes(const Tensor& x, const Spec& from, const Layout& to, bool needs_gradient);

}  // namespace tessera
