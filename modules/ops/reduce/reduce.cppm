export module tessera.ops:reduce;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

/// Values along a dim and their positions in it (i64).
struct ValuesAndIndices {
  Tensor values;
  Tensor indices;
};

// Functions with `across_ranks`: with it, the reduced dims may be sharded, and the result is
// Replicate on their mesh axes. The ranks all-reduce one number for each element of the result
// (var, std and logsumexp: two; argmax and argmin: two per rank), and backward may reduce as many.
// Without it, a shard of a reduced dim gives a Partial result if there is one (max, min, norm), and
// otherwise is an error. On plain tensors it changes nothing.

/// Over `dims` (none: all dims). Integers and bool sum to i64.
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Equal extremes share the gradient equally.
Tensor amax(const Tensor& x, const Dims& dims = {}, bool keepdim = false,
            bool across_ranks = false);
Tensor amin(const Tensor& x, const Dims& dims = {}, bool keepdim = false,
            bool across_ranks = false);
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  // bool
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  // bool
Tensor count_nonzero(const Tensor& x, const Dims& dims = {});              // i64
Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim = false,
                 bool across_ranks = false);
/// Divided by count - correction.
Tensor var(const Tensor& x, const Dims& dims = {}, bool keepdim = false,
           std::int64_t correction = 1, bool across_ranks = false);
Tensor std(const Tensor& x, const Dims& dims = {}, bool keepdim = false,
           std::int64_t correction = 1, bool across_ranks = false);
/// (sum |x|^p)^(1/p). p = infinity: the largest |x|; -infinity: the smallest; 0: the number of
/// elements that are not 0. If a reduced dim is sharded, the result is Partial: a sum for p = 0 and
/// 1, a max or min for the infinities, otherwise Partial(norm(p)), for which p must be exact in
/// f32. The backward of a Partial(norm(p)) needs the whole norm: the ranks reduce one number per
/// element of the result; communication reports list it as whole_norm.
Tensor norm(const Tensor& x, double p, const Dims& dims = {}, bool keepdim = false,
            bool across_ranks = false);
/// The product over `dims` (none: all); integers and bool give i64. If a reduced dim is sharded,
/// the result is Partial(product), and its gradient needs the whole x: redistribute x before, or
/// call backward() in an AllowRedistribution scope.
Tensor prod(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// The first position of the largest (smallest) element along dim (i64); NaN is treated as both.
/// Without a dim: its index in the flattened x; with keepdim in as many dims as x has.
Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false,
              bool across_ranks = false);
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false,
              bool across_ranks = false);
/// The largest (smallest) element along dim and its first position; only that position receives
/// the gradient.
ValuesAndIndices max(const Tensor& x, std::int64_t dim, bool keepdim = false);
ValuesAndIndices min(const Tensor& x, std::int64_t dim, bool keepdim = false);
// Cumulative along dim: over all elements up to and including each one.
Tensor cumsum(const Tensor& x, std::int64_t dim);
Tensor cumprod(const Tensor& x, std::int64_t dim);
Tensor logcumsumexp(const Tensor& x, std::int64_t dim);
/// The Euclidean norm of all elements, a scalar: norm(x, 2), in one pass. Partial(norm(2)) where x
/// is sharded.
Tensor vector_norm(const Tensor& x);
/// The sum of squares of all elements, summed in double: Partial(sum) where x is sharded.
Tensor squared_norm(const Tensor& x);

/// What exact_sum adds up: elements, or their squares (each rounded to f64 first; exact for f32 and
/// narrower types).
enum class ExactTerm : std::uint8_t { element, square };
/// The sum of all elements of a plain floating tensor without any rounding, as the digits of one
/// long fixed-point number (i64 [exact_digits]). Digits of several sums are added up with `add` or
/// an all-reduce; that is exact too, so the order of sums does not matter. At most 2^30 may be
/// added up. It has no gradient.
Tensor exact_sum(const Tensor& x, ExactTerm term = ExactTerm::element);
inline constexpr std::int64_t exact_digits = 70;
/// The number that digits of exact_sum are, rounded once to f64, without dims; infinite or NaN as
/// sums of doubles are.
Tensor exact_value(const Tensor& digits);

}  // namespace tessera::ops
