// Comparisons (eq, ne, lt, le, gt, ge) and logic (logical_and, logical_or, logical_xor,
// logical_not): bool results, no gradient.
module;
#include <cstdint>
#include <span>
#include <string>

#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;

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
  kernels::compare_strided(op, a.dtype(), shape.span(), a.raw_data(),
                           operands::broadcast_strides(a, shape).span(), b.raw_data(),
                           operands::broadcast_strides(b, shape).span(),
                           static_cast<std::uint8_t*>(out[0].raw_data()), out[0].strides().span());
}

template <kernels::CompareOp op>
std::string element(const Call&) {
  using enum kernels::CompareOp;
  switch (op) {
    case equal:
      return "a == b ? V{} + 1 : V{}";
    case not_equal:
      return "a != b ? V{} + 1 : V{}";
    case less:
      return "a < b ? V{} + 1 : V{}";
    case less_equal:
      return "a <= b ? V{} + 1 : V{}";
    case greater:
      return "a > b ? V{} + 1 : V{}";
    case greater_equal:
      return "a >= b ? V{} + 1 : V{}";
    case logical_and:
      return "(a != V{}) & (b != V{}) ? V{} + 1 : V{}";
    case logical_or:
      return "(a != V{}) | (b != V{}) ? V{} + 1 : V{}";
    case logical_xor:
      return "(a != V{}) ^ (b != V{}) ? V{} + 1 : V{}";
  }
  return {};
}

template <kernels::CompareOp op>
const Op& comparison(const char* name, const char* about) {
  return register_op({.schema = std::string(name) + "(a, b)",
                      .infer = infer,
                      .cpu = cpu<op>,
                      .element = element<op>,
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

const Op& and_op = comparison<Compare::logical_and>("logical_and", "True if neither operand is 0.");
const Op& or_op =
    comparison<Compare::logical_or>("logical_or", "True if at least one operand is not 0.");
const Op& xor_op =
    comparison<Compare::logical_xor>("logical_xor", "True if exactly one operand is not 0.");

void infer_not(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), DType::boolean});
}

void not_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  if (w.counts()) {
    return;
  }
  kernels::compare_scalar(Compare::equal, x.dtype(), x.numel(), x.raw_data(), 0,
                          static_cast<std::uint8_t*>(out[0].raw_data()));
}

const Op& not_op =
    register_op({.schema = "logical_not(x)",
                 .infer = infer_not,
                 .cpu = in_workspace<not_cpu>,
                 .workspace = workspace_of_copies<not_cpu>,
                 .element = [](const Call&) -> std::string { return "a == V{} ? V{} + 1 : V{}"; },
                 .rule = rules::pointwise,
                 .about = "True if x is 0."});

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

}  // namespace tessera::ops
