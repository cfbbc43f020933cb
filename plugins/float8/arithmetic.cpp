#include <optional>

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;

#include "arithmetic.hpp"

namespace float8 {

using namespace tessera;

namespace {

/// The largest finite number of a type.
double most(DType type) { return type == DType::f8e4m3 ? 448 : 57344; }

constexpr double least_amax = 1e-12;  // torchao's EPS, against a division by 0

}  // namespace

DType gradient_type(Scaling scaling) {
  return scaling == Scaling::tensorwise ? DType::f8e5m2 : DType::f8e4m3;
}

Tensor largest(const Tensor& x, const Dims& dims) {
  if (x.numel() == 0) {
    Dims shape = dims.empty() ? Dims{} : x.shape();
    for (const std::int64_t dim : dims) {
      shape[static_cast<int>(dim)] = 1;
    }
    return zeros(shape, DType::f32, x.device());
  }
  const bool keep = !dims.empty();
  const Tensor above = ops::amax(x, dims, keep);
  const Tensor below = ops::neg(ops::amin(x, dims, keep));
  return ops::cast(ops::maximum(above, below), DType::f32);
}

Tensor scale_of(const Tensor& amax, DType type, Scaling scaling) {
  const Tensor divisor =
      ops::maximum(ops::cast(amax, DType::f64), full({}, least_amax, DType::f64, amax.device()));
  const Tensor scale =
      ops::cast(ops::div(full({}, most(type), DType::f64, amax.device()), divisor), DType::f32);
  return scaling == Scaling::tensorwise ? scale : ops::exp2(ops::floor(ops::log2(scale)));
}

Tensor codes_of(const Tensor& x, const Tensor& scale, DType type) {
  const Tensor values = ops::mul(ops::cast(x, DType::f32), scale);
  return ops::cast(ops::clamp(values, -most(type), most(type)), type);
}

Quantized quantize(const Tensor& x, DType type, Scaling scaling, const Dims& dims) {
  const Tensor scale = scale_of(largest(x, dims), type, scaling);
  return {codes_of(x, scale, type), ops::reciprocal(scale)};
}

Tensor widened(const Tensor& codes, const Layout& layout, const Dims& shape) {
  return from_local(ops::cast(codes, DType::f32), layout, shape);
}

Tensor scaled(const Tensor& product, const Tensor& first, const Tensor& second, DType type) {
  const Tensor local = ops::mul(product.local(), ops::mul(first, second));
  return from_local(ops::cast(local, type), product.layout(), product.shape());
}

}  // namespace float8
