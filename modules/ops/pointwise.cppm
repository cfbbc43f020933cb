module;
#include <cstdint>
export module tessera.ops:pointwise;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

// Binary, with broadcasting and type promotion as in PyTorch.
Tensor add(const Tensor& a, const Tensor& b, double alpha = 1);  // a + alpha * b
Tensor sub(const Tensor& a, const Tensor& b, double alpha = 1);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
/// a must hold no smaller type than the result; b broadcasts to a.
Tensor add_(const Tensor& a, const Tensor& b, double alpha = 1);
Tensor mul_(const Tensor& a, const Tensor& b);
Tensor copy_(const Tensor& into, const Tensor& from);  // with a cast and broadcasting

// With a scalar.
Tensor add_scalar(const Tensor& x, double value);
Tensor mul_scalar(const Tensor& x, double value);
Tensor pow_scalar(const Tensor& x, double exponent);
Tensor mul_scalar_(const Tensor& x, double value);
Tensor fill_(const Tensor& x, double value);
Tensor clamp(const Tensor& x, double low, double high);

// Unary.
Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor square(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor relu(const Tensor& x);
Tensor silu(const Tensor& x);
Tensor gelu(const Tensor& x, bool tanh_form = false);
Tensor sign(const Tensor& x);

// Comparisons give bool; no gradient.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);

/// condition ? a : b, elementwise with broadcasting.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
/// mask ? value : x; `mask` (bool) broadcasts to x.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

Tensor cast(const Tensor& x, DType dtype);
/// A fresh contiguous copy.
Tensor clone(const Tensor& x);
/// Same shape, type and layout, all ones (zeros). A Partial operand gives a Replicate result.
Tensor ones_like(const Tensor& x);
Tensor zeros_like(const Tensor& x);

}  // namespace tessera::ops
