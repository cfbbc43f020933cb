module;
#include <cstdint>
export module tessera.ops:view;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

// All of these share x's memory. Dims may be negative (from the back).
/// One extent may be -1. Errors: strides or shards for which no view exists; reshape() copies where
/// needed.
Tensor view(const Tensor& x, const Dims& shape);
Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1);
Tensor permute(const Tensor& x, const Dims& dims);
/// Dims of extent 1 repeat (stride 0); -1 keeps an extent; new dims come in front.
Tensor expand(const Tensor& x, const Dims& shape);
Tensor squeeze(const Tensor& x, std::int64_t dim);  // a dim of another extent stays
Tensor unsqueeze(const Tensor& x, std::int64_t dim);
Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length);
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);
Tensor slice(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t end,
             std::int64_t step = 1);
Tensor flatten(const Tensor& x, std::int64_t start_dim = 0, std::int64_t end_dim = -1);
/// The same value without its gradient's path.
Tensor detach(const Tensor& x);

}  // namespace tessera::ops
