export module tessera.ops:view;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

// These functions share x's memory. Negative dims count from the end.
/// One extent may be -1. Errors: no view exists for these strides or shards; use reshape(), which
/// copies if necessary.
Tensor view(const Tensor& x, const Dims& shape);
Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1);
Tensor permute(const Tensor& x, const Dims& dims);
/// Repeats dims of extent 1 (stride 0); -1 keeps an extent; new dims are added at the front.
Tensor expand(const Tensor& x, const Dims& shape);
Tensor squeeze(const Tensor& x, std::int64_t dim);  // a dim with another extent is kept
Tensor squeeze(const Tensor& x);                    // removes all dims of extent 1
Tensor unsqueeze(const Tensor& x, std::int64_t dim);
Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length);
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);
Tensor slice(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t end,
             std::int64_t step = 1);
Tensor flatten(const Tensor& x, std::int64_t start_dim = 0, std::int64_t end_dim = -1);
/// `dim` as several dims of these extents, one of which may be -1.
Tensor unflatten(const Tensor& x, std::int64_t dim, const Dims& extents);
Tensor view_as(const Tensor& x, const Tensor& other);
/// transpose() under NumPy's name.
Tensor swapaxes(const Tensor& x, std::int64_t dim0, std::int64_t dim1);
/// Dim source[i] of x becomes dim destination[i]; the others keep their order.
Tensor movedim(const Tensor& x, const Dims& source, const Dims& destination);
/// The slices along `dim`, without that dim.
Tensors unbind(const Tensor& x, std::int64_t dim = 0);
/// Pieces of `size` along `dim`, the last may be shorter.
Tensors split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
/// Pieces of these sizes along `dim`, in order. Errors: the sum of the sizes is not dim's extent.
Tensors split_with_sizes(const Tensor& x, std::span<const std::int64_t> sizes,
                         std::int64_t dim = 0);
/// Pieces of ceil(extent / chunks) along `dim`: at most `chunks`, the last may be shorter.
Tensors chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim = 0);
/// The elements whose index along dim2 is `offset` larger than along dim1, as the last dim.
Tensor diagonal(const Tensor& x, std::int64_t offset = 0, std::int64_t dim1 = 0,
                std::int64_t dim2 = 1);
/// x's memory with another shape and strides, starting `offset` elements after its beginning; plain
/// tensors only. Errors: elements outside of the memory; a gradient is required and x repeats
/// elements.
Tensor as_strided(const Tensor& x, const Dims& shape, const Dims& strides, std::int64_t offset = 0);
/// A view of the value, detached from the autograd graph.
Tensor detach(const Tensor& x);

// These share x's memory where they can.
/// x itself if it is contiguous, else a copy.
Tensor contiguous(const Tensor& x);
/// x itself if it is in the device's memory, else a copy there: find_device("adversary:1") is a
/// device. Its gradient is copied back. See copied_to() for when the host waits.
Tensor to_device(const Tensor& x, Device device);
/// A view if one exists, else a copy.
Tensor reshape(const Tensor& x, const Dims& shape);

}  // namespace tessera::ops
