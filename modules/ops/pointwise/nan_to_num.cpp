// Numbers in the place of NaN and the infinities: nan_to_num.
module;
#include <limits>
#include <span>

#include "pointwise/functions/with_numbers.hpp"
#include "pointwise/kernels/apply.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :pointwise_call;

namespace tessera::ops {
namespace {

struct NanToNumArgs {
  Dynamic<double> nan;
  Dynamic<double> posinf;
  Dynamic<double> neginf;
};

using namespace elementwise;
using operands::PointwiseForms;

/// Gradient of nan_to_num: replaced elements are constant.
void nan_to_num_backward(const BackwardContext& context, std::span<const Tensor> grads,
                         std::span<Tensor> out) {
  static const Op& masked = find_op("masked_fill_backward");
  out[0] = call_one(masked, {grads[0], logical_not(isfinite(context.in[0]))});
}

const PointwiseForms nan_to_num_forms = register_function<functions::NanToNum, NanToNumArgs, 1, 3>(
    "nan_to_num(x)", nan_to_num_backward, "x with NaN and the infinities replaced by numbers.");

}  // namespace

Tensor nan_to_num(const Tensor& x, double nan) {
  operands::given("nan_to_num", "x", x);
  double largest = std::numeric_limits<float>::max();
  if (x.dtype() == DType::f64) {
    largest = std::numeric_limits<double>::max();
  } else if (x.dtype() == DType::f16) {
    largest = 65504;
  } else if (x.dtype() == DType::bf16) {
    largest = 0x1.FEp127;
  }
  return nan_to_num(x, nan, largest, -largest);
}

Tensor nan_to_num(const Tensor& x, double nan, double positive, double negative) {
  operands::given("nan_to_num", "x", x);
  if (!is_floating(x.dtype())) {
    return clone(x);
  }
  return call_one(nan_to_num_forms.op, {x}, NanToNumArgs{nan, positive, negative});
}

}  // namespace tessera::ops
