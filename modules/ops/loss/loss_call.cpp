module;
#include <fmt/format.h>

#include "pointwise/kernels/functions.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :loss_call;

namespace tessera::ops::losses {

void check_same_shape(const char* op, const Tensor& a, const Tensor& b) {
  operands::given(op, "a", a);
  operands::given(op, "b", b);
  if (!(a.shape() == b.shape())) {
    fail({.thing = op,
          .wrong = "the shapes differ",
          .got = fmt::format("{} and {}", to_string(a.shape()), to_string(b.shape())),
          .advice = "expand one operand"});
  }
}

Tensor reduced(const Tensor& each, Reduction reduction) {
  if (reduction == Reduction::none) {
    return each;
  }
  // The mean as a sum with a factor: shards of any size give a Partial(sum).
  const Tensor total = sum(each);
  return reduction == Reduction::sum ? total
                                     : mul_scalar(total, 1 / static_cast<double>(each.numel()));
}

void infer_elements(const Call& call, ResultShapes& out) {
  operands::check_floating(call.op.name, call.in[0]);
  operands::infer_broadcast(call, out);
}

void apply_elements(kernels::FunctionOp op, const Call& call, Tensor& y, double parameter) {
  if (y.numel() == 0) {
    return;
  }
  const Dims a = operands::broadcast_strides(call.in[0], y.shape());
  const Dims b = operands::broadcast_strides(call.in[1], y.shape());
  const kernels::Operand in[] = {{call.in[0].raw_data(), a.span()},
                                 {call.in[1].raw_data(), b.span()}};
  kernels::function(op, y.dtype(), y.shape().span(), in, {&parameter, 1}, y.raw_data());
}

}  // namespace tessera::ops::losses
