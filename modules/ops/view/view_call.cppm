// Shared parts of views with other shapes, and views that gradients of other families call.
module tessera.ops:view_call;

import tessera.base;
import tessera.tensor;

namespace tessera::ops::views {

/// Strides under which strided x has `shape`, or none: a dim may be split, and adjacent dims
/// may be merged.
std::optional<Dims> view_strides(const Tensor& x, const Dims& shape);

using ShapeFunction = Dims (*)(const Call& call);

template <ShapeFunction shape_of>
inline void infer_shape(const Call& call, ResultShapes& out) {
  out.push_back({shape_of(call), call.in[0].dtype()});
}

/// Adds x's memory in another shape. Errors: no strides give that.
void push_view(const Call& call, const Dims& shape, Tensors& out);

template <ShapeFunction shape_of>
inline void make_view(const Call& call, Tensors& out) {
  push_view(call, shape_of(call), out);
}

/// The operator slice_backward: zeros of `extent` along `dim`, with grad at start, start + step...
Tensor slice_backward(const Tensor& grad, std::int64_t dim, std::int64_t extent, std::int64_t start,
                      std::int64_t step = 1);

}  // namespace tessera::ops::views
