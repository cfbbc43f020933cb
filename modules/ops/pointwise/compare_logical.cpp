// Comparisons (eq, ne, lt, le, gt, ge) and logic (logical_and, logical_or, logical_xor,
// logical_not): bool results, no gradient.
module;
#include <string>

#include "pointwise/functions/comparisons.hpp"
#include "pointwise/kernels/apply.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :pointwise_call;

namespace tessera::ops {
namespace {

using namespace elementwise;

void infer(const Call& call, ResultShapes& out) {
  operands::check_same_type(call.op.name, call.in[0], call.in[1]);
  out.push_back({operands::broadcast_shape(call.op.name, call.in[0].shape(), call.in[1].shape()),
                 DType::boolean});
}

template <class F>
const Op& comparison(const char* name, const char* about) {
  return register_op({.schema = std::string(name) + "(a, b)",
                      .infer = infer,
                      .cpu = function_cpu<F, 2>,
                      .element = element<F>,
                      .rule = rules::pointwise,
                      .about = about});
}

const Op& eq_op = comparison<functions::Equal>("eq", "a == b.");
const Op& ne_op = comparison<functions::NotEqual>("ne", "a != b.");
const Op& lt_op = comparison<functions::Less>("lt", "a < b.");
const Op& le_op = comparison<functions::LessEqual>("le", "a <= b.");
const Op& gt_op = comparison<functions::Greater>("gt", "a > b.");
const Op& ge_op = comparison<functions::GreaterEqual>("ge", "a >= b.");

const Op& and_op =
    comparison<functions::LogicalAnd>("logical_and", "True if neither operand is 0.");
const Op& or_op =
    comparison<functions::LogicalOr>("logical_or", "True if at least one operand is not 0.");
const Op& xor_op =
    comparison<functions::LogicalXor>("logical_xor", "True if exactly one operand is not 0.");

void infer_not(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), DType::boolean});
}

const Op& not_op =
    register_op({.schema = "logical_not(x)",
                 .infer = infer_not,
                 .cpu = in_workspace<copied_cpu<functions::LogicalNot, 1>>,
                 .workspace = workspace_of_copies<copied_cpu<functions::LogicalNot, 1>>,
                 .element = element<functions::LogicalNot>,
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
