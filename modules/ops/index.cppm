module;
#include <cstdint>
export module tessera.ops:index;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

/// Rows of weight [n, d] by indices (i64 or i32) of any shape -> indices' shape + [d]. Errors: an
/// index out of range. A weight sharded on rows gives Partial(sum): every rank contributes the rows
/// that it has.
Tensor embedding(const Tensor& weight, const Tensor& indices);
Tensor gather(const Tensor& x, const Tensor& index, std::int64_t dim);
Tensor scatter_add(const Tensor& x, const Tensor& index, const Tensor& source, std::int64_t dim);
Tensor index_select(const Tensor& x, const Tensor& index, std::int64_t dim);
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);
Tensor one_hot(const Tensor& x, std::int64_t num_classes);  // i64

}  // namespace tessera::ops
