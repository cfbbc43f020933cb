#pragma once
// Elementwise functions of one to three operands that also take numbers.

#include <cstdint>
#include <span>

#include "pointwise.hpp"

namespace tessera::kernels {

/// With a, b, c the operands' elements and p, q, r the numbers:
enum class FunctionOp : std::uint8_t {
  leaky_relu,           // a > 0 ? a : p a
  leaky_relu_backward,  // a > 0 ? b : p b
  elu,                  // a > 0 ? a : p (exp(a) - 1)
  elu_backward,         // a > 0 ? b : p exp(a) b
  softplus,             // p a > q ? a : log(1 + exp(p a)) / p
  softplus_backward,    // p a > q ? b : b / (1 + exp(-p a))
  hardtanh,             // the nearest number within [p, q]; NaN stays
  hardtanh_backward,    // p < a < q ? b : 0
  nan_to_num,           // p for NaN, q and r for the infinities
  smooth_l1,            // d = |a - b|: d < p ? d d / (2 p) : d - p / 2
  cross_entropy,        // of sigmoid(a) with b: max(a, 0) - a b + log(1 + exp(-|a|))
  kl_div,               // b > 0 ? b (log b - a) : 0
  kl_div_log,           // exp(b) (b - a)
  lerp_scalar,          // a + p (b - a), from the nearer end
  lerp,                 // the same with c for p
  addcmul,              // a + p b c
  addcdiv               // a + p b / c
};

/// An operand that broadcasts: strides in elements.
struct Operand {
  const void* data = nullptr;
  Extents strides;
};

/// y (contiguous, of `extents`) = op(operands; numbers), floating types. y may be an operand.
/// Operands and numbers are as many as the function has; others are ignored.
void function(FunctionOp op, DType dtype, Extents extents, std::span<const Operand> operands,
              std::span<const double> numbers, void* y);

}  // namespace tessera::kernels
