// Scales and codes, as torchao 0.18 computes them (torchao/float8/float8_utils.py), and products of
// codes. Everything is composed of operators on plain tensors, so that a step can be recorded.
#pragma once

// Included after the imports of tessera's modules.

namespace float8 {

enum class Scaling { tensorwise, rowwise };

/// The type of the codes of output gradients: inputs and weights are always f8e4m3.
tessera::DType gradient_type(Scaling scaling);

/// max |x| in f32, of all elements (no dims), or over `dims`, which stay with extent 1. Of no
/// elements: 0.
tessera::Tensor largest(const tessera::Tensor& x, const tessera::Dims& dims = {});

/// The type's largest number / max(amax, 1e-12), computed in f64 and stored in f32. Row-wise scales
/// are rounded down to powers of two.
tessera::Tensor scale_of(const tessera::Tensor& amax, tessera::DType type, Scaling scaling);

/// x * scale in f32, cut off at the type's largest numbers and rounded to the type.
tessera::Tensor codes_of(const tessera::Tensor& x, const tessera::Tensor& scale,
                         tessera::DType type);

/// Codes with the factor that turns them back into values, 1 / scale: in f32, with one element, or
/// with extent 1 in the dims that share a scale.
struct Quantized {
  tessera::Tensor codes;
  tessera::Tensor factor;
};
/// Scaled by the largest of all elements, or of those along `dims`.
Quantized quantize(const tessera::Tensor& x, tessera::DType type, Scaling scaling,
                   const tessera::Dims& dims = {});

/// The distributed tensor in f32 whose local part has these codes as values. Exact.
tessera::Tensor widened(const tessera::Tensor& codes, const tessera::Layout& layout,
                        const tessera::Dims& shape);

/// A product of codes on this rank, times both factors (which broadcast), in `type`. The product is
/// a sum in f32; only then it is scaled and rounded. In the layout of `product`: on a Partial axis
/// each rank scales its own term.
tessera::Tensor scaled(const tessera::Tensor& product, const tessera::Tensor& first,
                       const tessera::Tensor& second, tessera::DType type);

}  // namespace float8
