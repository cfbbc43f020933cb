export module tessera.ops:reduce;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

/// What an operator finds along a dim, and where: positions in x's dim (i64).
struct ValuesAndIndices {
  Tensor values;
  Tensor indices;
};

/// Over `dims` (none: all dims). Integers and bool sum to i64.
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor amax(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  // bool
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  // bool
Tensor count_nonzero(const Tensor& x, const Dims& dims = {});              // i64
Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim = false);
/// Divided by count - correction.
Tensor var(const Tensor& x, const Dims& dims = {}, bool keepdim = false,
           std::int64_t correction = 1);
Tensor std(const Tensor& x, const Dims& dims = {}, bool keepdim = false,
           std::int64_t correction = 1);
/// (sum |x|^p)^(1/p); p infinity: the largest |x|, -infinity: the smallest, 0: how many are not 0.
/// Shards of a reduced dim give a Partial: of sums for p 0 and 1, of extrema for the infinities,
/// else norm(p), the Partial of norms (p must then be exact in f32). Backward of that needs the
/// whole norm: the ranks reduce one number for each of the result's, which a report lists as
/// whole_norm.
Tensor norm(const Tensor& x, double p, const Dims& dims = {}, bool keepdim = false);
Tensor prod(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// The first position of the largest (smallest) along dim, i64; NaN counts as either.
Tensor argmax(const Tensor& x, std::int64_t dim, bool keepdim = false);
Tensor argmin(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// The largest (smallest) along dim with its first position, which alone gets the gradient.
ValuesAndIndices max(const Tensor& x, std::int64_t dim, bool keepdim = false);
ValuesAndIndices min(const Tensor& x, std::int64_t dim, bool keepdim = false);
// Of all elements up to each one along dim.
Tensor cumsum(const Tensor& x, std::int64_t dim);
Tensor cumprod(const Tensor& x, std::int64_t dim);
Tensor logcumsumexp(const Tensor& x, std::int64_t dim);
/// The Euclidean norm of all elements, a scalar: norm(x, 2), in one pass. Partial(norm(2)) where x
/// is sharded.
Tensor vector_norm(const Tensor& x);
/// The sum of squares of all elements, summed in double: Partial(sum) where x is sharded.
Tensor squared_norm(const Tensor& x);

}  // namespace tessera::ops
