// Tests of each element: isnan, isinf, isfinite. bool results, no gradient.
module;
#include <cstdint>
#include <limits>
#include <span>

#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using Compare = kernels::CompareOp;

void infer_test(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), DType::boolean});
}

/// How |x| compares with infinity; NaN compares with nothing.
template <Compare op>
void test_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  const auto type = x.dtype();
  const Tensor magnitude = temporary(w, is_floating(type) ? x.shape() : Dims{0}, type);
  if (w.counts()) {
    return;
  }
  auto* y = static_cast<std::uint8_t*>(out[0].raw_data());
  if (!is_floating(x.dtype())) {  // no integer is infinite
    kernels::fill(DType::boolean, x.numel(), op == Compare::less ? 1 : 0, y);
    return;
  }
  kernels::unary(kernels::UnaryOp::abs, type, x.numel(), x.raw_data(), magnitude.raw_data());
  kernels::compare_scalar(op, type, x.numel(), magnitude.raw_data(),
                          std::numeric_limits<double>::infinity(), y);
}

/// Only NaN differs from itself.
void isnan_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  if (w.counts()) {
    return;
  }
  kernels::compare(kernels::CompareOp::not_equal, x.dtype(), x.numel(), x.raw_data(), x.raw_data(),
                   static_cast<std::uint8_t*>(out[0].raw_data()));
}

template <WorkspaceKernel cpu>
const Op& test(const char* schema, const char* about) {
  return register_op({.schema = schema,
                      .infer = infer_test,
                      .cpu = in_workspace<cpu>,
                      .workspace = workspace_of<cpu>,
                      .rule = rules::pointwise,
                      .about = about});
}

const Op& isnan_op = test<isnan_cpu>("isnan(x)", "True if x is NaN.");
const Op& isinf_op = test<test_cpu<Compare::equal>>("isinf(x)", "True if x is infinite.");
const Op& isfinite_op =
    test<test_cpu<Compare::less>>("isfinite(x)", "True if x is neither NaN nor infinite.");

}  // namespace

Tensor isnan(const Tensor& x) { return call_one(isnan_op, {x}); }
Tensor isinf(const Tensor& x) { return call_one(isinf_op, {x}); }
Tensor isfinite(const Tensor& x) { return call_one(isfinite_op, {x}); }

}  // namespace tessera::ops
