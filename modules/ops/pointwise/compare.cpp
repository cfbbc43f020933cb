// Comparisons, logic and tests of one element: bool results, no gradient.
module;
#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "pointwise/kernels/pointwise.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {
namespace {

void infer(const Call& call, ResultShapes& out) {
  operands::check_same_type(call.op.name, call.in[0], call.in[1]);
  out.push_back({operands::broadcast_shape(call.op.name, call.in[0].shape(), call.in[1].shape()),
                 DType::boolean});
}

template <kernels::CompareOp op>
void cpu(const Call& call, std::span<Tensor> out) {
  const Tensor& a = call.in[0];
  const Tensor& b = call.in[1];
  const Dims& shape = out[0].shape();
  if (out[0].numel() == 0) {
    return;
  }
  kernels::compare_strided(op, static_cast<kernels::DType>(a.dtype()), shape.span(), a.raw_data(),
                           operands::broadcast_strides(a, shape).span(), b.raw_data(),
                           operands::broadcast_strides(b, shape).span(),
                           static_cast<std::uint8_t*>(out[0].raw_data()), out[0].strides().span());
}

template <kernels::CompareOp op>
const Op& comparison(const char* name, const char* about) {
  return register_op({.schema = std::string(name) + "(a, b)",
                      .infer = infer,
                      .cpu = cpu<op>,
                      .rule = rules::pointwise,
                      .about = about});
}

using Compare = kernels::CompareOp;
const Op& eq_op = comparison<Compare::equal>("eq", "a == b.");
const Op& ne_op = comparison<Compare::not_equal>("ne", "a != b.");
const Op& lt_op = comparison<Compare::less>("lt", "a < b.");
const Op& le_op = comparison<Compare::less_equal>("le", "a <= b.");
const Op& gt_op = comparison<Compare::greater>("gt", "a > b.");
const Op& ge_op = comparison<Compare::greater_equal>("ge", "a >= b.");

const Op& and_op = comparison<Compare::logical_and>("logical_and", "Neither is 0.");
const Op& or_op = comparison<Compare::logical_or>("logical_or", "One or both are not 0.");
const Op& xor_op = comparison<Compare::logical_xor>("logical_xor", "Just one is not 0.");

// Tests of one element.

void infer_test(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), DType::boolean});
}

/// How |x| (or x itself) compares with a number; NaN compares with nothing.
template <kernels::CompareOp op, bool absolute>
void test_cpu(const Call& call, std::span<Tensor> out) {
  constexpr double number = absolute ? std::numeric_limits<double>::infinity() : 0;
  Tensor x = operands::contiguous(call.in[0]);
  const auto type = static_cast<kernels::DType>(x.dtype());
  auto* y = static_cast<std::uint8_t*>(out[0].raw_data());
  if constexpr (absolute) {
    if (!is_floating(x.dtype())) {  // no integer is infinite
      kernels::fill(kernels::DType::boolean, x.numel(), op == kernels::CompareOp::less ? 1 : 0, y);
      return;
    }
    const Tensor magnitude = empty(x.shape(), x.dtype());
    kernels::unary(kernels::UnaryOp::abs, type, x.numel(), x.raw_data(), magnitude.raw_data());
    x = magnitude;
  }
  kernels::compare_scalar(op, type, x.numel(), x.raw_data(), number, y);
}

/// Only NaN differs from itself.
void isnan_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = operands::contiguous(call.in[0]);
  kernels::compare(kernels::CompareOp::not_equal, static_cast<kernels::DType>(x.dtype()), x.numel(),
                   x.raw_data(), x.raw_data(), static_cast<std::uint8_t*>(out[0].raw_data()));
}

const Op& test(const char* schema, void (*cpu)(const Call&, std::span<Tensor>), const char* about) {
  return register_op({.schema = schema,
                      .infer = infer_test,
                      .cpu = cpu,
                      .rule = rules::pointwise,
                      .about = about});
}

const Op& not_op = test("logical_not(x)", test_cpu<Compare::equal, false>, "x is 0.");
const Op& isnan_op = test("isnan(x)", isnan_cpu, "x is not a number.");
const Op& isinf_op = test("isinf(x)", test_cpu<Compare::equal, true>, "x is infinite.");
const Op& isfinite_op =
    test("isfinite(x)", test_cpu<Compare::less, true>, "x is a number and not infinite.");

void infer_bits(const Call& call, ResultShapes& out) {
  const DType type = call.in[0].dtype();
  if (is_floating(type)) {
    fail(fmt::format("{}: bool or integers are expected (got {})", call.op.name, name_of(type)));
  }
  out.push_back({call.in[0].shape(), type});
}

void bitwise_not_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = operands::contiguous(call.in[0]);
  const double ones = x.dtype() == DType::boolean ? 1 : (x.dtype() == DType::u8 ? 255 : -1);
  kernels::binary_scalar(kernels::BinaryOp::bitwise_xor, static_cast<kernels::DType>(x.dtype()),
                         x.numel(), x.raw_data(), ones, out[0].raw_data());
}

const operands::PointwiseForms bitwise_not_forms =
    operands::register_pointwise({.schema = "bitwise_not(x)",
                                  .infer = infer_bits,
                                  .cpu = bitwise_not_cpu,
                                  .rule = rules::pointwise,
                                  .about = "Every bit turned round."});

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return operands::call_promoted(eq_op, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return operands::call_promoted(ne_op, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return operands::call_promoted(lt_op, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return operands::call_promoted(le_op, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return operands::call_promoted(gt_op, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return operands::call_promoted(ge_op, a, b); }

Tensor logical_and(const Tensor& a, const Tensor& b) {
  return operands::call_promoted(and_op, a, b);
}

Tensor logical_or(const Tensor& a, const Tensor& b) { return operands::call_promoted(or_op, a, b); }

Tensor logical_xor(const Tensor& a, const Tensor& b) {
  return operands::call_promoted(xor_op, a, b);
}

Tensor logical_not(const Tensor& x) { return call_one(not_op, {x}); }
Tensor isnan(const Tensor& x) { return call_one(isnan_op, {x}); }
Tensor isinf(const Tensor& x) { return call_one(isinf_op, {x}); }
Tensor isfinite(const Tensor& x) { return call_one(isfinite_op, {x}); }
Tensor bitwise_not(const Tensor& x) { return call_one(bitwise_not_forms.op, {x}); }

}  // namespace tessera::ops
