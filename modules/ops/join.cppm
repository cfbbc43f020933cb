module;
#include <cstdint>
#include <span>
export module tessera.ops:join;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

Tensor cat(std::span<const Tensor> tensors, std::int64_t dim = 0);
Tensor stack(std::span<const Tensor> tensors, std::int64_t dim = 0);
/// Pieces of `size` along `dim`, the last may be shorter; views.
Tensors split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
/// x itself when it is contiguous, else a copy.
Tensor contiguous(const Tensor& x);
/// A view where one exists, else a copy.
Tensor reshape(const Tensor& x, const Dims& shape);

}  // namespace tessera::ops
