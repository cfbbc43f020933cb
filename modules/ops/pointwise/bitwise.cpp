// Bit by bit, of bool and integers: bitwise_and, bitwise_or, bitwise_xor, bitwise_not.
module;
#include <fmt/format.h>

#include <span>

#include "pointwise/functions/arithmetic.hpp"
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
using operands::call_promoted;
using operands::PointwiseForms;

void infer_bits(const Call& call, ResultShapes& out) {
  if (is_floating(call.in[0].dtype())) {
    fail({.thing = call.op.name,
          .wrong = "the operand has the wrong type",
          .expected = "bool or integers",
          .got = std::string(name_of(call.in[0].dtype()))});
  }
  operands::infer_broadcast(call, out);
}

template <class F>
PointwiseForms bits(const char* schema, const char* about) {
  return operands::register_pointwise({.schema = schema,
                                       .infer = infer_bits,
                                       .cpu = function_cpu<F, 2>,
                                       .rule = rules::pointwise,
                                       .about = about});
}

const PointwiseForms and_forms = bits<functions::BitwiseAnd>("bitwise_and(a, b)", "Bitwise and.");
const PointwiseForms or_forms = bits<functions::BitwiseOr>("bitwise_or(a, b)", "Bitwise or.");
const PointwiseForms xor_forms =
    bits<functions::BitwiseXor>("bitwise_xor(a, b)", "Bitwise exclusive or.");

void infer_not(const Call& call, ResultShapes& out) {
  const DType type = call.in[0].dtype();
  if (is_floating(type)) {
    fail({.thing = call.op.name,
          .wrong = "the operand has the wrong type",
          .expected = "bool or integers",
          .got = std::string(name_of(type))});
  }
  out.push_back({call.in[0].shape(), type});
}

void bitwise_not_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const DType type = call.in[0].dtype();
  const double ones = all_bits(type);
  apply_to_copies(kernels::kernels_of<functions::BitwiseXor, 1, 1>(), call, {&ones, 1}, out[0], w);
}

const PointwiseForms bitwise_not_forms =
    operands::register_pointwise({.schema = "bitwise_not(x)",
                                  .infer = infer_not,
                                  .cpu = in_workspace<bitwise_not_cpu>,
                                  .workspace = workspace_of_copies<bitwise_not_cpu>,
                                  .rule = rules::pointwise,
                                  .about = "Bitwise not."});

}  // namespace

Tensor bitwise_and(const Tensor& a, const Tensor& b) { return call_promoted(and_forms.op, a, b); }
Tensor bitwise_or(const Tensor& a, const Tensor& b) { return call_promoted(or_forms.op, a, b); }
Tensor bitwise_xor(const Tensor& a, const Tensor& b) { return call_promoted(xor_forms.op, a, b); }

Tensor bitwise_not(const Tensor& x) { return call_one(bitwise_not_forms.op, {x}); }

}  // namespace tessera::ops
