// Scales and codes, as torchao 0.18 computes them (torchao/float8/float8_utils.py), and products of
// codes, by operators, so that a step can be recorded.
#pragma once

// Included after the imports of tessera's modules.

namespace float8 {

enum class Scaling { tensorwise, rowwise };

/// The type of the codes of output gradients: inputs and weights are always f8e4m3.
tessera::DType gradient_type(Scaling scaling);

/// max |x| in f32; of no elements: 0.
tessera::Tensor largest(const tessera::Tensor& x);

/// The type's largest number / max(amax, 1e-12), computed in f64 and stored in f32: the scales of
/// wholes.
tessera::Tensor scale_of(const tessera::Tensor& amax, tessera::DType type);

/// Which elements of a tensor share a scale: all, those of a row of the last dim, or of a column.
enum class Scales { whole, rows, columns };

/// How codes lie in memory. A GPU multiplies those that are contiguous along the dims that a
/// product sums over: the last one, as x has it, or the others.
enum class CodesOrder { as_x, turned, both };

/// Codes with the factor that turns them back into values, 1 / scale: in f32, with extent 1 in the
/// dims that share a scale.
struct QuantizedTensor {
  tessera::Tensor as_x;    // absent, if only turned ones were made
  tessera::Tensor turned;  // the same codes, a view with the dims of x; absent, if none were made
  tessera::Tensor factor;

  /// For products that sum over the last dim, or over the others: those that lie so, or what there
  /// is.
  const tessera::Tensor& along_last() const { return as_x ? as_x : turned; }
  const tessera::Tensor& along_others() const { return turned ? turned : as_x; }
};
/// Scaled by the largest of the elements that share a scale; row-wise scales are powers of two.
QuantizedTensor quantize(const tessera::Tensor& x, tessera::DType type, Scales scales,
                         CodesOrder order);
/// x * scale in f32, cut off at the type's largest numbers and rounded to the type.
QuantizedTensor quantize(const tessera::Tensor& x, tessera::DType type,
                         const tessera::Tensor& scale, CodesOrder order);

/// Codes of this rank's part of a tensor, as operands of products.
struct Operand {
  tessera::Tensor codes;   // distributed
  tessera::Tensor factor;  // each rank's own for what it has
};
/// `codes`, `factor`: this rank's; `shape`: of the whole tensor.
Operand operand(const tessera::Tensor& codes, const tessera::Tensor& factor,
                const tessera::Layout& layout, const tessera::Dims& shape);

/// y, the gradient of x, and the gradient of the weight, in `type`. The products are sums in f32;
/// only then they are scaled and rounded: on a Partial axis each rank's own term.
tessera::Tensor linear(const Operand& x, const Operand& weight, tessera::DType type);
tessera::Tensor gradient_of_input(const Operand& dy, const Operand& weight, tessera::DType type);
tessera::Tensor gradient_of_weight(const Operand& dy, const Operand& x, tessera::DType type);

}  // namespace float8
