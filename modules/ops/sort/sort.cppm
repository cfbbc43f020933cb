export module tessera.ops:sort;

import tessera.base;
import tessera.tensor;
import :reduce;

export namespace tessera::ops {

/// x sorted along dim, NaN last (first if descending); stable.
ValuesAndIndices sort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
Tensor argsort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
/// The result of unique(); inverse and counts are undefined unless they were requested.
struct UniqueElements {
  Tensor values;   // [found], ascending; NaN last, each NaN is a value of its own
  Tensor inverse;  // x's shape, i64: the position in values of each element of x
  Tensor counts;   // [found], i64: how often each value occurs
};
/// The distinct elements of x, of any shape. The number of values depends on the elements, so every
/// rank needs all of x: a sharded or Partial x is an error, or is gathered within an
/// AllowRedistribution scope. No gradient. Error: x is on the meta device.
UniqueElements unique(const Tensor& x, bool return_inverse = false, bool return_counts = false);
/// The k largest (smallest) elements along dim, in order; of equal elements the first. Errors: the
/// dim has fewer than k elements. With `across_ranks` the dim may be sharded, and the results are
/// Replicate on its mesh axes: the k candidates of each rank are joined in two all-reduces (values,
/// positions) of k numbers per rank for each element of the other dims. Backward does not
/// communicate.
ValuesAndIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim = -1, bool largest = true,
                      bool across_ranks = false);

}  // namespace tessera::ops
