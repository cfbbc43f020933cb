#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

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

/// The arguments of quantize_f8, one object for each combination.
const Attributes& quantize_arguments(const Op& op, DType type, Scales scales, CodesOrder order) {
  constexpr std::array<const char*, 3> shared = {"whole", "rows", "columns"};
  constexpr std::array<const char*, 3> orders = {"as_x", "turned", "both"};
  static const std::vector<Attributes> all = [&] {
    std::vector<Attributes> made;
    for (const char* of_type : {"f8e4m3", "f8e5m2"}) {
      for (const char* sharing : shared) {
        for (const char* in_order : orders) {
          made.push_back(
              attributes_from_text(*op.arguments,
                                   fmt::format("dtype={}, scales={}, powers_of_two={}, order={}",
                                               of_type, sharing, sharing != shared[0], in_order),
                                   "Float8"));
        }
      }
    }
    return made;
  }();
  const std::size_t of_type = type == DType::f8e4m3 ? 0 : 1;
  return all[(of_type * shared.size() + static_cast<std::size_t>(scales)) * orders.size() +
             static_cast<std::size_t>(order)];
}

/// Turned codes as a view with the dims of x.
Tensor with_dims_of_x(const Tensor& turned) {
  Dims dims;
  for (int d = 1; d <= turned.dims(); ++d) {
    dims.push_back(d % turned.dims());
  }
  return ops::permute(turned, dims);
}

QuantizedTensor quantized(const Tensor& x, const Tensor& scale, DType type, Scales scales,
                          CodesOrder order) {
  static const Op& op = find_op("quantize_f8");
  const Tensors made = call(op, {x, scale}, quantize_arguments(op, type, scales, order));
  QuantizedTensor codes = {.as_x = {}, .turned = {}, .factor = made[1]};
  if (order != CodesOrder::turned) {
    codes.as_x = made[0];
  }
  if (order != CodesOrder::as_x) {
    codes.turned = with_dims_of_x(order == CodesOrder::both ? made[2] : made[0]);
  }
  return codes;
}

/// The arguments of scaled_linear and its gradients, one object for each type of results.
const Attributes& product_arguments(const Op& op, DType type) {
  static const std::vector<Attributes> all = [&] {
    std::vector<Attributes> made;
    for (int i = 0; i < dtype_count; ++i) {
      made.push_back(attributes_from_json(
          *op.arguments, R"({"dtype": ")" + std::string(name_of(static_cast<DType>(i))) + "\"}",
          "Float8"));
    }
    return made;
  }();
  return all[static_cast<std::size_t>(type)];
}

Tensor product(const Op& op, const Operand& a, const Operand& b, DType type) {
  return call_one(op, {a.codes, a.factor, b.codes, b.factor}, product_arguments(op, type));
}

}  // namespace

DType gradient_type(Scaling scaling) {
  return scaling == Scaling::tensorwise ? DType::f8e5m2 : DType::f8e4m3;
}

Tensor largest(const Tensor& x) {
  if (x.numel() == 0) {
    return zeros({}, DType::f32, x.device());
  }
  const Tensor above = ops::amax(x);
  const Tensor below = ops::neg(ops::amin(x));
  return ops::cast(ops::maximum(above, below), DType::f32);
}

Tensor scale_of(const Tensor& amax, DType type) {
  const Tensor divisor =
      ops::maximum(ops::cast(amax, DType::f64), full({}, least_amax, DType::f64, amax.device()));
  return ops::cast(ops::div(full({}, most(type), DType::f64, amax.device()), divisor), DType::f32);
}

QuantizedTensor quantize(const Tensor& x, DType type, Scales scales, CodesOrder order) {
  return quantized(x, Tensor(), type, scales, order);
}

QuantizedTensor quantize(const Tensor& x, DType type, const Tensor& scale, CodesOrder order) {
  return quantized(x, scale, type, Scales::whole, order);
}

Operand operand(const Tensor& codes, const Tensor& factor, const Layout& layout,
                const Dims& shape) {
  if (factor.dims() == 0) {
    return {from_local(codes, layout, shape),
            from_local(factor, Layout::replicated(layout.mesh()), Dims{})};
  }
  // Where ranks share no scale, there are as many factors as ranks along the dim.
  Dims factors = Dims::filled(shape.size(), 1);
  for (int d = 0; d < shape.size(); ++d) {
    if (factor.shape()[d] == codes.shape()[d] && codes.shape()[d] != 1) {
      factors[d] = shape[d];
      continue;
    }
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      const Placement placement = layout.placement(axis);
      factors[d] *=
          placement.is_shard() && placement.dim() == d ? layout.mesh().axis_size(axis) : 1;
    }
  }
  return {from_local(codes, layout, shape), from_local(factor, layout, factors)};
}

Tensor linear(const Operand& x, const Operand& weight, DType type) {
  static const Op& op = find_op("scaled_linear");
  return product(op, x, weight, type);
}

Tensor gradient_of_input(const Operand& dy, const Operand& weight, DType type) {
  static const Op& op = find_op("scaled_linear_grad_input");
  return product(op, dy, weight, type);
}

Tensor gradient_of_weight(const Operand& dy, const Operand& x, DType type) {
  static const Op& op = find_op("scaled_linear_grad_weight");
  return product(op, dy, x, type);
}

}  // namespace float8
