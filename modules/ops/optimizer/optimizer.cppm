export module tessera.ops:optimizer;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

// Operators over lists: one call of the dispatcher for all tensors. The lists have the same length;
// x[i] and the tensors at position i of the other lists have the same shape. x is written in place
// and keeps its layout. The tensors at position i must have the layout of x[i]: a Replicate tensor
// is cut; any other layout is an error, or is redistributed within an AllowRedistribution scope.
void foreach_zero_(std::span<const Tensor> x);
void foreach_mul_(std::span<const Tensor> x, const Number& value);
void foreach_add_(std::span<const Tensor> x, std::span<const Tensor> y, const Number& alpha = 1);
void foreach_lerp_(std::span<const Tensor> x, std::span<const Tensor> end, const Number& weight);
void foreach_addcmul_(std::span<const Tensor> x, std::span<const Tensor> a,
                      std::span<const Tensor> b, const Number& value = 1);
void foreach_addcdiv_(std::span<const Tensor> x, std::span<const Tensor> a,
                      std::span<const Tensor> b, const Number& value = 1);
/// The sums of squares of all elements of each tensor, [length of the list] in f64: Partial(sum) if
/// the tensors are sharded.
Tensor foreach_squared_norm(std::span<const Tensor> x);
/// Cuts each tensor along `dim` into `chunks` chunks (the last one padded with zeros) and flattens
/// them. Row i of the result, [dims before dim..., chunks, width], contains chunk i of all tensors.
/// This is the input of a reduce-scatter of a list.
Tensor chunk_cat(std::span<const Tensor> tensors, std::int64_t dim, std::int64_t chunks);

}  // namespace tessera::ops
