export module tessera.ops:index;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

/// The rows of weight [n, d] at indices (i64 or i32) of any shape -> indices' shape + [d]. Errors:
/// an index is out of range. A weight that is sharded by rows gives Partial(sum): every rank
/// contributes its rows.
Tensor embedding(const Tensor& weight, const Tensor& indices);
Tensor gather(const Tensor& x, const Tensor& index, std::int64_t dim);
Tensor scatter_add(const Tensor& x, const Tensor& index, const Tensor& source, std::int64_t dim);
Tensor index_select(const Tensor& x, const Tensor& index, std::int64_t dim);
/// x with source (or value) written at the indices along `dim`. If an index occurs twice, the later
/// value is kept.
Tensor scatter(const Tensor& x, const Tensor& index, const Tensor& source, std::int64_t dim);
Tensor scatter(const Tensor& x, const Tensor& index, double value, std::int64_t dim);
/// gather() with index and x broadcast in all dims except `dim`.
Tensor take_along_dim(const Tensor& x, const Tensor& index, std::int64_t dim);
/// x with slice i of source, times alpha, added at index[i] along `dim`.
Tensor index_add(const Tensor& x, const Tensor& index, const Tensor& source, std::int64_t dim,
                 double alpha = 1);
/// x with value in the slices at `index` along `dim`.
Tensor index_fill(const Tensor& x, const Tensor& index, double value, std::int64_t dim);
/// x[indices[0], indices[1], ...], as in PyTorch: each entry of `indices` is for one dim of x. An
/// undefined tensor takes the whole dim (`:`); integers (i64 or i32; negative ones count from the
/// end) take these positions; a bool mask of n dims is for n dims of x and takes the positions
/// where it is true, as n integer indices would. The integer indices broadcast together. Their dims
/// are in the result where the first indexed dim was if the indexed dims are adjacent, and
/// otherwise at the front; dims without an entry follow. The result of a mask has a shape that
/// depends on values, so masks must be plain tensors with data; see masked_fill() and where() for
/// others.
Tensor index(const Tensor& x, std::span<const Tensor> indices);
/// x with `values` (broadcast) written, or added, at x[indices...]. If a position occurs twice, the
/// later value is kept, or both are added. A distributed or meta mask must be the only index, and
/// the values must not have a dim for its positions.
Tensor index_put(const Tensor& x, std::span<const Tensor> indices, const Tensor& values,
                 bool accumulate = false);
/// The positions of the elements that are not 0: i64 [count, dims], in row-major order. Plain
/// tensors only, like masked_select, because the result's shape depends on the values.
Tensor nonzero(const Tensor& x);
/// The elements of x where `mask` (bool, broadcast with x) is true, as one dim.
Tensor masked_select(const Tensor& x, const Tensor& mask);
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);
Tensor one_hot(const Tensor& x, std::int64_t num_classes);  // i64

}  // namespace tessera::ops
