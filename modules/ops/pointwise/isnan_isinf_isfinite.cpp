// Tests of each element: isnan, isinf, isfinite. bool results, no gradient.
module;
#include <cstdint>
#include <limits>
#include <span>

#include "pointwise/kernels/pointwise.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {
namespace {

using Compare = kernels::CompareOp;

void infer_test(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), DType::boolean});
}

/// How |x| compares with infinity; NaN compares with nothing.
template <Compare op>
void test_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = operands::contiguous(call.in[0]);
  const auto type = x.dtype();
  auto* y = static_cast<std::uint8_t*>(out[0].raw_data());
  if (!is_floating(x.dtype())) {  // no integer is infinite
    kernels::fill(DType::boolean, x.numel(), op == Compare::less ? 1 : 0, y);
    return;
  }
  const Tensor magnitude = empty(x.shape(), x.dtype());
  kernels::unary(kernels::UnaryOp::abs, type, x.numel(), x.raw_data(), magnitude.raw_data());
  kernels::compare_scalar(op, type, x.numel(), magnitude.raw_data(),
                          std::numeric_limits<double>::infinity(), y);
}

/// Only NaN differs from itself.
void isnan_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = operands::contiguous(call.in[0]);
  kernels::compare(kernels::CompareOp::not_equal, x.dtype(), x.numel(), x.raw_data(), x.raw_data(),
                   static_cast<std::uint8_t*>(out[0].raw_data()));
}

const Op& test(const char* schema, void (*cpu)(const Call&, std::span<Tensor>), const char* about) {
  return register_op({.schema = schema,
                      .infer = infer_test,
                      .cpu = cpu,
                      .rule = rules::pointwise,
                      .about = about});
}

const Op& isnan_op = test("isnan(x)", isnan_cpu, "True if x is NaN.");
const Op& isinf_op = test("isinf(x)", test_cpu<Compare::equal>, "True if x is infinite.");
const Op& isfinite_op =
    test("isfinite(x)", test_cpu<Compare::less>, "True if x is neither NaN nor infinite.");

}  // namespace

Tensor isnan(const Tensor& x) { return call_one(isnan_op, {x}); }
Tensor isinf(const Tensor& x) { return call_one(isinf_op, {x}); }
Tensor isfinite(const Tensor& x) { return call_one(isfinite_op, {x}); }

}  // namespace tessera::ops
