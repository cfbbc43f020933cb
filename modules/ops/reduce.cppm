module;
#include <cstdint>
export module tessera.ops:reduce;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

/// Over `dims` (none: all dims). Integers and bool sum to i64.
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor amax(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim = false);
Tensor var(const Tensor& x, const Dims& dims = {}, bool keepdim = false,
           std::int64_t correction = 1);
Tensor prod(const Tensor& x, std::int64_t dim, bool keepdim = false);
Tensor argmax(const Tensor& x, std::int64_t dim, bool keepdim = false);  // i64
Tensor cumsum(const Tensor& x, std::int64_t dim);
/// The Euclidean norm of all elements, a scalar. Sharded operands give sqrt(sum) only after a
/// reduction: use squared_norm() and take the root of the whole.
Tensor vector_norm(const Tensor& x);
/// The sum of squares of all elements, summed in double: Partial(sum) where x is sharded.
Tensor squared_norm(const Tensor& x);

}  // namespace tessera::ops
