export module tessera.ops:sort;

import tessera.base;
import tessera.tensor;
import :reduce;

export namespace tessera::ops {

/// x in order along dim, NaN last (first when descending); equal elements keep their order.
ValuesAndIndices sort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
Tensor argsort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
/// What unique() finds; inverse and counts are undefined where they were not asked for.
struct UniqueElements {
  Tensor values;   // [found], ascending; NaN last, each one for itself
  Tensor inverse;  // x's shape, i64: where in values each element is
  Tensor counts;   // [found], i64: how often each value comes
};
/// The distinct elements of x, of any shape. How many there are depends on the values, so all of x
/// must be on every rank: a sharded or Partial x is an error as for every operator, or gathered in
/// an AllowRedistribution scope. No gradient. Error: x is on the meta device.
UniqueElements unique(const Tensor& x, bool return_inverse = false, bool return_counts = false);
/// The k largest (smallest) along dim, in order; of equal ones the first. Errors: fewer than k.
ValuesAndIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim = -1, bool largest = true);

}  // namespace tessera::ops
