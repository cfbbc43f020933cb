export module tessera.ops:join;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

/// Tensors one after the other along an existing dim.
Tensor cat(std::span<const Tensor> tensors, std::int64_t dim = 0);
Tensor stack(std::span<const Tensor> tensors, std::int64_t dim = 0);
/// In reverse order along `dims`.
Tensor flip(const Tensor& x, const Dims& dims);
/// Moves element i of dims[k] to i + shifts[k]; elements beyond the end continue at the beginning.
/// Without dims: shifts the flattened x.
Tensor roll(const Tensor& x, const Dims& shifts, const Dims& dims = {});
/// The values of the padding: a constant; x mirrored at its first and last element; the first and
/// last element repeated; x continued from its other end.
enum class PadMode { constant, reflect, replicate, circular };
/// Adds padding[0] elements before and padding[1] after the last dim, [2] and [3] for the dim
/// before it, and so on; negative numbers remove elements. `value` is used in mode constant, the
/// only mode that accepts integers.
Tensor pad(const Tensor& x, const Dims& padding, PadMode mode = PadMode::constant,
           double value = 0);
/// x repeated repeats[d] times along dim d; if there are more repeats than dims, new dims are added
/// at the front.
Tensor repeat(const Tensor& x, const Dims& repeats);
/// Each element `repeats` times along `dim`.
Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::int64_t dim);

}  // namespace tessera::ops
