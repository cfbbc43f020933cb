export module tessera.ops:pointwise;

import tessera.base;
import tessera.tensor;

namespace tessera::ops::unary_functions {

/// The operator of a function of one operand (functions/unary.hpp).
struct Operator {
  const Op& op;
  const Op& in_place;
  bool casts_integers;   // to f32
  bool copies_integers;  // the function does not change them
};
/// Errors: there is none of this name.
const Operator& find(std::string_view name);
Tensor call(const Operator& function, const Tensor& x);

struct Name {
  char text[16] = {};
  template <std::size_t count>
  consteval Name(const char (&name)[count]) {  // NOLINT(google-explicit-constructor)
    for (std::size_t i = 0; i < count; ++i) {
      text[i] = name[i];
    }
  }
};

}  // namespace tessera::ops::unary_functions

namespace tessera::ops {

/// The function of this name.
template <unary_functions::Name name>
inline Tensor unary(const Tensor& x) {
  static const unary_functions::Operator& function = unary_functions::find(name.text);
  return unary_functions::call(function, x);
}
template <unary_functions::Name name>
inline Tensor unary_(const Tensor& x) {
  static const unary_functions::Operator& function = unary_functions::find(name.text);
  return call_one(function.in_place, {x});
}

}  // namespace tessera::ops

export namespace tessera::ops {

// Binary, with broadcasting and type promotion as in PyTorch.
Tensor add(const Tensor& a, const Tensor& b, const Number& alpha = 1);  // a + alpha * b
Tensor sub(const Tensor& a, const Tensor& b, const Number& alpha = 1);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, const Tensor& exponent);
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor atan2(const Tensor& y, const Tensor& x);  // the angle of (x, y), in radians
/// The remainder of a / b, with the quotient rounded towards 0 (fmod, which has a's sign) or down
/// (remainder, which has b's sign). floor_divide returns the quotient rounded down. An integer
/// divided by 0 gives 0.
Tensor fmod(const Tensor& a, const Tensor& b);
Tensor remainder(const Tensor& a, const Tensor& b);
Tensor floor_divide(const Tensor& a, const Tensor& b);

// With a scalar.
Tensor add_scalar(const Tensor& x, const Number& value);
Tensor mul_scalar(const Tensor& x, const Number& value);
Tensor pow_scalar(const Tensor& x, double exponent);
Tensor fill_(const Tensor& x, const Number& value);
Tensor clamp(const Tensor& x, const Number& low, const Number& high);
/// Bounds that broadcast with x; each may be undefined (no bound), but not both. Where low is
/// larger than high, the result is high. An element that is equal to a bound shares the gradient
/// with it equally.
Tensor clamp(const Tensor& x, const Tensor& low, const Tensor& high);

// Ternary.
Tensor lerp(const Tensor& start, const Tensor& end, const Tensor& weight);  // start + w (end-start)
Tensor lerp_scalar(const Tensor& start, const Tensor& end, const Number& weight);
Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1);  // x + v a b
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1);  // x + v a / b

// Unary. Functions with floating results cast integers to f32.
inline Tensor neg(const Tensor& x) { return unary<"neg">(x); }
inline Tensor abs(const Tensor& x) { return unary<"abs">(x); }
inline Tensor sign(const Tensor& x) { return unary<"sign">(x); }
inline Tensor square(const Tensor& x) { return unary<"square">(x); }
inline Tensor floor(const Tensor& x) { return unary<"floor">(x); }
inline Tensor ceil(const Tensor& x) { return unary<"ceil">(x); }
inline Tensor round(const Tensor& x) { return unary<"round">(x); }  // ties to even
inline Tensor trunc(const Tensor& x) { return unary<"trunc">(x); }
inline Tensor frac(const Tensor& x) { return unary<"frac">(x); }  // x - trunc(x)
inline Tensor exp(const Tensor& x) { return unary<"exp">(x); }
inline Tensor exp2(const Tensor& x) { return unary<"exp2">(x); }
inline Tensor expm1(const Tensor& x) { return unary<"expm1">(x); }  // exp(x) - 1, exact near 0
inline Tensor log(const Tensor& x) { return unary<"log">(x); }
inline Tensor log2(const Tensor& x) { return unary<"log2">(x); }
inline Tensor log10(const Tensor& x) { return unary<"log10">(x); }
inline Tensor log1p(const Tensor& x) { return unary<"log1p">(x); }  // log(1 + x), exact near 0
inline Tensor sqrt(const Tensor& x) { return unary<"sqrt">(x); }
inline Tensor rsqrt(const Tensor& x) { return unary<"rsqrt">(x); }
inline Tensor reciprocal(const Tensor& x) { return unary<"reciprocal">(x); }
inline Tensor sin(const Tensor& x) { return unary<"sin">(x); }
inline Tensor cos(const Tensor& x) { return unary<"cos">(x); }
inline Tensor tan(const Tensor& x) { return unary<"tan">(x); }
inline Tensor asin(const Tensor& x) { return unary<"asin">(x); }
inline Tensor acos(const Tensor& x) { return unary<"acos">(x); }
inline Tensor atan(const Tensor& x) { return unary<"atan">(x); }
inline Tensor sinh(const Tensor& x) { return unary<"sinh">(x); }
inline Tensor cosh(const Tensor& x) { return unary<"cosh">(x); }
inline Tensor tanh(const Tensor& x) { return unary<"tanh">(x); }
inline Tensor erf(const Tensor& x) { return unary<"erf">(x); }
inline Tensor sigmoid(const Tensor& x) { return unary<"sigmoid">(x); }
inline Tensor log_sigmoid(const Tensor& x) { return unary<"log_sigmoid">(x); }
inline Tensor relu(const Tensor& x) { return unary<"relu">(x); }
inline Tensor silu(const Tensor& x) { return unary<"silu">(x); }
inline Tensor mish(const Tensor& x) { return unary<"mish">(x); }  // x tanh(log(1 + exp(x)))
Tensor gelu(const Tensor& x, bool tanh_form = false);
inline Tensor hardswish(const Tensor& x) {
  return unary<"hardswish">(x);
}  // x clamp(x + 3, 0, 6) / 6
inline Tensor hardsigmoid(const Tensor& x) {
  return unary<"hardsigmoid">(x);
}  // clamp(x + 3, 0, 6) / 6
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
Tensor elu(const Tensor& x, double alpha = 1);
Tensor hardtanh(const Tensor& x, double low = -1, double high = 1);
/// log(1 + exp(beta x)) / beta; x itself where beta x is above `threshold`.
Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20);
/// Replaces NaN by `nan` and the infinities by `positive` and `negative` (default: the largest and
/// the lowest number of the type).
Tensor nan_to_num(const Tensor& x, double nan = 0);
Tensor nan_to_num(const Tensor& x, double nan, double positive, double negative);

// Comparisons and logic return bool and have no gradient. Logic takes any type; every element other
// than 0 is true.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
// With a number: an integer tensor and a number that is not whole are compared in f32, as in
// PyTorch. A number that the type of x cannot hold is larger or smaller than all elements.
Tensor eq(const Tensor& x, double value);
Tensor ne(const Tensor& x, double value);
Tensor lt(const Tensor& x, double value);
Tensor le(const Tensor& x, double value);
Tensor gt(const Tensor& x, double value);
Tensor ge(const Tensor& x, double value);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_xor(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& x);
Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);
/// Bitwise, for bool and integers.
Tensor bitwise_and(const Tensor& a, const Tensor& b);
Tensor bitwise_or(const Tensor& a, const Tensor& b);
Tensor bitwise_xor(const Tensor& a, const Tensor& b);
Tensor bitwise_not(const Tensor& x);

/// condition ? a : b, elementwise with broadcasting.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
/// mask ? value : x; `mask` (bool) broadcasts to x.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

// In place: the result is written to the first operand, which keeps its memory. It must have the
// result's shape (the other operands broadcast to it); operands of another type are cast to its
// type. Every operator above except the comparisons, logic and where has an in-place variant with
// the name and "_" (find_op("tanh_")).
Tensor add_(const Tensor& a, const Tensor& b, const Number& alpha = 1);
Tensor sub_(const Tensor& a, const Tensor& b, const Number& alpha = 1);
Tensor mul_(const Tensor& a, const Tensor& b);
Tensor div_(const Tensor& a, const Tensor& b);
Tensor add_scalar_(const Tensor& x, const Number& value);
Tensor mul_scalar_(const Tensor& x, const Number& value);
Tensor pow_scalar_(const Tensor& x, double exponent);
Tensor clamp_(const Tensor& x, const Number& low, const Number& high);
Tensor lerp_(const Tensor& start, const Tensor& end, const Tensor& weight);
Tensor lerp_scalar_(const Tensor& start, const Tensor& end, const Number& weight);
Tensor addcmul_(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1);
Tensor addcdiv_(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1);
Tensor masked_fill_(const Tensor& x, const Tensor& mask, double value);
Tensor copy_(const Tensor& into, const Tensor& from);  // with a cast and broadcasting
inline Tensor neg_(const Tensor& x) { return unary_<"neg">(x); }
inline Tensor abs_(const Tensor& x) { return unary_<"abs">(x); }
inline Tensor square_(const Tensor& x) { return unary_<"square">(x); }
inline Tensor exp_(const Tensor& x) { return unary_<"exp">(x); }
inline Tensor log_(const Tensor& x) { return unary_<"log">(x); }
inline Tensor sqrt_(const Tensor& x) { return unary_<"sqrt">(x); }
inline Tensor rsqrt_(const Tensor& x) { return unary_<"rsqrt">(x); }
inline Tensor reciprocal_(const Tensor& x) { return unary_<"reciprocal">(x); }
inline Tensor relu_(const Tensor& x) { return unary_<"relu">(x); }
inline Tensor sigmoid_(const Tensor& x) { return unary_<"sigmoid">(x); }
inline Tensor tanh_(const Tensor& x) { return unary_<"tanh">(x); }
/// Calls the pointwise operator `op` and writes the result to `out`, which must have the result's
/// shape and type and keeps its memory: PyTorch's `out=`. A distributed `out` must have the
/// result's layout. Errors: `op` is not a pointwise operator; `out` has another shape or type.
Tensor call_into(const Tensor& out, const Op& op, std::initializer_list<Tensor> in,
                 const Attributes& attributes = {});

/// x in another type, rounded to the nearest value.
Tensor cast(const Tensor& x, DType dtype);
/// A contiguous copy.
Tensor clone(const Tensor& x);
/// Ones (zeros) in x's shape, type and layout; Replicate where x is Partial.
Tensor ones_like(const Tensor& x);
Tensor zeros_like(const Tensor& x);

}  // namespace tessera::ops
