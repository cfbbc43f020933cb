// The kernels of all functions of elements. To add one: its line here. The host finds it by the
// function's name (elements.cpp).
#include "kernels/elements.hpp"
#include "pointwise/functions/arithmetic.hpp"
#include "pointwise/functions/comparisons.hpp"
#include "pointwise/functions/losses.hpp"
#include "pointwise/functions/unary.hpp"
#include "pointwise/functions/with_numbers.hpp"

using namespace tessera::cuda;
using namespace tessera::functions;

namespace {

/// silu(gate) up.
struct Swiglu : Function {
  template <class T>
  static constexpr T value(T gate, T up) {
    return Silu::value(gate) * up;
  }
};

}  // namespace

// Kernels NAME_OPERANDS_NUMBERS_f32 and ..._others: a kernel's name must be a word of the source.
#define ELEMENTS(NAME, OPERANDS, NUMBERS, ...)                       \
  extern "C" __global__ void NAME##_##OPERANDS##_##NUMBERS##_f32(    \
      const __grid_constant__ ElementArguments a) {                  \
    compute_f32<__VA_ARGS__, OPERANDS, NUMBERS>(a);                  \
  }                                                                  \
  extern "C" __global__ void NAME##_##OPERANDS##_##NUMBERS##_others( \
      const __grid_constant__ ElementArguments a) {                  \
    compute_others<__VA_ARGS__, OPERANDS, NUMBERS>(a);               \
  }
#define FUNCTION(NAME, OPERANDS, NUMBERS) ELEMENTS(NAME, OPERANDS, NUMBERS, NAME)
/// A function of one element with its gradient.
#define WITH_GRADIENT(NAME, OPERANDS, NUMBERS) \
  FUNCTION(NAME, OPERANDS, NUMBERS)            \
  ELEMENTS(GradientOf_##NAME, 2, NUMBERS, GradientOf<NAME>)
/// A comparison of two elements, and of one with a number.
#define COMPARISON(NAME) FUNCTION(NAME, 2, 0) FUNCTION(NAME, 1, 1)

FUNCTION(Add, 1, 1)
FUNCTION(Mul, 2, 0)
FUNCTION(Mul, 1, 1)
FUNCTION(Div, 2, 0)
FUNCTION(Maximum, 2, 0)
FUNCTION(Minimum, 2, 0)
FUNCTION(AddScaled, 2, 1)
FUNCTION(SubScaled, 2, 1)
FUNCTION(Lerp, 3, 0)
FUNCTION(Lerp, 2, 1)
FUNCTION(Addcmul, 3, 1)
FUNCTION(Addcdiv, 3, 1)
WITH_GRADIENT(Clamp, 1, 2)
FUNCTION(BitwiseAnd, 2, 0)
FUNCTION(BitwiseOr, 2, 0)
FUNCTION(BitwiseXor, 2, 0)
FUNCTION(BitwiseXor, 1, 1)
FUNCTION(Pow, 2, 0)
FUNCTION(Pow, 1, 1)
FUNCTION(Atan2, 2, 0)
FUNCTION(Fmod, 2, 0)
FUNCTION(Remainder, 2, 0)
FUNCTION(FloorDivide, 2, 0)

COMPARISON(Equal)
COMPARISON(NotEqual)
COMPARISON(Less)
COMPARISON(LessEqual)
COMPARISON(Greater)
COMPARISON(GreaterEqual)
FUNCTION(LogicalAnd, 2, 0)
FUNCTION(LogicalOr, 2, 0)
FUNCTION(LogicalXor, 2, 0)
FUNCTION(LogicalNot, 1, 0)
FUNCTION(IsNan, 1, 0)
FUNCTION(IsInfinite, 1, 0)
FUNCTION(IsFinite, 1, 0)
FUNCTION(Where, 3, 0)
FUNCTION(MaskedFill, 2, 1)
FUNCTION(MaskedZero, 2, 0)

FUNCTION(Neg, 1, 0)
WITH_GRADIENT(Abs, 1, 0)
WITH_GRADIENT(Square, 1, 0)
WITH_GRADIENT(Sign, 1, 0)
WITH_GRADIENT(Sqrt, 1, 0)
WITH_GRADIENT(Rsqrt, 1, 0)
WITH_GRADIENT(Reciprocal, 1, 0)
WITH_GRADIENT(Floor, 1, 0)
WITH_GRADIENT(Ceil, 1, 0)
WITH_GRADIENT(Round, 1, 0)
WITH_GRADIENT(Trunc, 1, 0)
WITH_GRADIENT(Frac, 1, 0)
WITH_GRADIENT(Exp, 1, 0)
WITH_GRADIENT(Exp2, 1, 0)
WITH_GRADIENT(Expm1, 1, 0)
WITH_GRADIENT(Log, 1, 0)
WITH_GRADIENT(Log2, 1, 0)
WITH_GRADIENT(Log10, 1, 0)
WITH_GRADIENT(Log1p, 1, 0)
WITH_GRADIENT(Sin, 1, 0)
WITH_GRADIENT(Cos, 1, 0)
WITH_GRADIENT(Tan, 1, 0)
WITH_GRADIENT(Asin, 1, 0)
WITH_GRADIENT(Acos, 1, 0)
WITH_GRADIENT(Atan, 1, 0)
WITH_GRADIENT(Sinh, 1, 0)
WITH_GRADIENT(Cosh, 1, 0)
WITH_GRADIENT(Tanh, 1, 0)
WITH_GRADIENT(Erf, 1, 0)
WITH_GRADIENT(Sigmoid, 1, 0)
WITH_GRADIENT(LogSigmoid, 1, 0)
WITH_GRADIENT(Relu, 1, 0)
WITH_GRADIENT(Silu, 1, 0)
WITH_GRADIENT(Mish, 1, 0)
WITH_GRADIENT(Hardswish, 1, 0)
WITH_GRADIENT(Hardsigmoid, 1, 0)
WITH_GRADIENT(Gelu, 1, 0)
WITH_GRADIENT(GeluTanh, 1, 0)

WITH_GRADIENT(LeakyRelu, 1, 1)
WITH_GRADIENT(Elu, 1, 1)
WITH_GRADIENT(Softplus, 1, 2)
WITH_GRADIENT(Hardtanh, 1, 2)
FUNCTION(NanToNum, 1, 3)

FUNCTION(Swiglu, 2, 0)

FUNCTION(SmoothL1, 2, 1)
FUNCTION(LogisticLoss, 2, 0)
FUNCTION(KlDiv, 2, 0)
FUNCTION(KlDivOfLogarithm, 2, 0)
