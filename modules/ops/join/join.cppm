export module tessera.ops:join;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

Tensor cat(std::span<const Tensor> tensors, std::int64_t dim = 0);
Tensor stack(std::span<const Tensor> tensors, std::int64_t dim = 0);
/// In reverse order along `dims`.
Tensor flip(const Tensor& x, const Dims& dims);
/// Element i of dims[k] goes to i + shifts[k], around the end. Without dims: of the flattened x.
Tensor roll(const Tensor& x, const Dims& shifts, const Dims& dims = {});
/// What stands outside of x when it is padded: a value; x mirrored about its first and last
/// element; these elements repeated; x again from its other end.
enum class PadMode { constant, reflect, replicate, circular };
/// padding[0] and [1] elements before and after the last dim, [2] and [3] those of the last but
/// one...; negative ones cut off. `value` is for constant only, which alone takes integers.
Tensor pad(const Tensor& x, const Dims& padding, PadMode mode = PadMode::constant,
           double value = 0);
/// x repeats[d] times one after the other along dim d; more repeats than dims give dims in front.
Tensor repeat(const Tensor& x, const Dims& repeats);
/// Each element `repeats` times along `dim`.
Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::int64_t dim);

}  // namespace tessera::ops
