// Sums without rounding: exact_sum, exact_value.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "reduce/kernels/exact.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

struct ExactArgs {
  ExactTerm term;
};

static_assert(exact_digits == kernels::kExactDigits);

void sum_infer(const Call& call, ResultShapes& out) {
  operands::check_floating("exact_sum", call.in[0]);
  out.push_back({Dims{exact_digits}, DType::i64});
}

void sum_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  kernels::exact_sum(w, x.dtype(), call.args<ExactArgs>().term == ExactTerm::square, x.numel(),
                     pointer<void>(w, x), pointer<std::int64_t>(w, out[0]));
}

// A sharded sum has other digits than a whole one, although they are the same number; so no rule
// says that they are equal.
const Op& sum_op = register_op<ExactArgs>({
    .schema = "exact_sum(x)",
    .infer = sum_infer,
    .cpu = in_workspace<sum_cpu>,
    .workspace = workspace_of<sum_cpu>,
    .about = "The sum of all elements or of their squares without rounding, as digits of 32 bits "
             "that can be added up in any order; local tensors.",
});

void value_infer(const Call& call, ResultShapes& out) {
  check_shape(call, 0, Dims{exact_digits});
  check_type(call, 0, DType::i64);
  out.push_back({Dims{}, DType::f64});
}

void value_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor digits = contiguous_operand(w, call.in[0]);
  if (!w.counts()) {
    *out[0].data<double>() = kernels::exact_value(pointer<std::int64_t>(digits));
  }
}

const Op& value_op = register_op({
    .schema = "exact_value(digits)",
    .infer = value_infer,
    .cpu = in_workspace<value_cpu>,
    .workspace = workspace_of<value_cpu>,
    .about = "The number in f64 whose digits exact_sum has given; local tensors.",
});

}  // namespace

Tensor exact_sum(const Tensor& x, ExactTerm term) {
  return call_one(sum_op, {x}, ExactArgs{.term = term});
}

Tensor exact_value(const Tensor& digits) { return call_one(value_op, {digits}); }

}  // namespace tessera::ops
