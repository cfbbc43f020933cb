// Variance and standard deviation over dims: var, std.
module;
#include <algorithm>
#include <cstdint>
#include <span>

#include "reduce/kernels/moments.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :reduce_call;

namespace tessera::ops {
namespace {

using namespace reductions;
using operands::ReducedDims;

std::int64_t count_of(const Dims& shape, const Dims& dims) {
  std::int64_t count = 1;
  for (const std::int64_t d : dims) {
    count *= shape[static_cast<int>(d)];
  }
  return count;
}

/// The arguments of var and std.
struct VarArgs {
  Dims dims;
  bool keepdim;
  std::int64_t correction;
};

template <bool root>
void var_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto correction = static_cast<double>(call.args<VarArgs>().correction);
  const operands::ReducedOperand r =
      reduced_operand(w, call.in[0], operands::reduced_dims(call).dims);
  kernels::variance(w, r.x.dtype(), {r.outer, r.reduced, r.inner}, pointer<void>(w, r.x),
                    correction, root, pointer<void>(w, out[0]));
}

/// `slope` (x - mean) / (count - correction)
Tensor centred_gradient(const BackwardContext& context, const Tensor& slope) {
  const Tensor& x = context.in[0];
  const ReducedDims a = operands::reduced_dims(context);
  if (a.dims.empty()) {
    return zeros_like(x);
  }
  const double free = static_cast<double>(count_of(x.shape(), a.dims)) -
                      static_cast<double>(context.args<VarArgs>().correction);
  const Tensor centred = sub(x, mean(x, a.dims, true));
  const Tensor g = operands::spread(slope, a.dims, a.keepdim, x.shape());
  return mul(g, mul_scalar(centred, 1 / std::max(free, 0.0)));
}

void var_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  out[0] = centred_gradient(context, mul_scalar(grads[0], 2));
}

/// x / y, 0 where y is 0.
Tensor quotient(const Tensor& x, const Tensor& y) {
  const Tensor none = eq(y, zeros_like(y));
  return masked_fill(div(x, masked_fill(y, none, 1)), none, 0);
}

void std_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  out[0] = centred_gradient(context, quotient(grads[0], context.out[0]));
}

const Op& var_op =
    register_op<VarArgs>({.schema = "var(x)",
                          .infer = infer_floating_reduction,
                          .cpu = in_workspace<var_cpu<false>>,
                          .workspace = workspace_of<var_cpu<false>>,
                          .rule = kept_dims_rule,
                          .backward = var_backward,
                          .saves_inputs = saves_all,
                          .about = "The variance over dims: the sum of squared distances from the "
                                   "mean, divided by count - correction."});

const Op& std_op =
    register_op<VarArgs>({.schema = "std(x)",
                          .infer = infer_floating_reduction,
                          .cpu = in_workspace<var_cpu<true>>,
                          .workspace = workspace_of<var_cpu<true>>,
                          .rule = kept_dims_rule,
                          .backward = std_backward,
                          .saves_inputs = saves_all,
                          .saves_outputs = saves_all,
                          .about = "The standard deviation: the square root of var."});

Attributes moments(const char* op, const Tensor& x, const Dims& dims, bool keepdim,
                   std::int64_t correction) {
  operands::given(op, "x", x);
  return VarArgs{operands::sorted_dims(op, dims, x.dims()), keepdim, correction};
}

/// The variance in the type of statistics, from the whole sums of all ranks.
Tensor variance_across(const char* op, const Tensor& x, const Dims& dims, bool keepdim,
                       std::int64_t correction) {
  operands::check_floating(op, x);
  const Dims sorted = operands::sorted_dims(op, dims, x.dims());
  const std::int64_t count = count_of(x.shape(), sorted);
  const Tensor wide = cast(x, statistics_type(x.dtype()));
  const Tensor total = operands::whole_sum(sum(wide, sorted, true));
  const Tensor centred = sub(wide, mul_scalar(total, 1 / static_cast<double>(count)));
  const Tensor squares = operands::whole_sum(sum(square(centred), sorted, keepdim));
  const std::int64_t free = std::max<std::int64_t>(count - correction, 0);
  return mul_scalar(squares, 1 / static_cast<double>(free));
}

bool reduces_across(const Tensor& x, bool across_ranks) {
  return across_ranks && x && x.is_distributed() && x.dims() > 0;
}

}  // namespace

Tensor var(const Tensor& x, const Dims& dims, bool keepdim, std::int64_t correction,
           bool across_ranks) {
  if (reduces_across(x, across_ranks)) {
    return cast(variance_across("var", x, dims, keepdim, correction), x.dtype());
  }
  return call_one(var_op, {x}, moments("var", x, dims, keepdim, correction));
}

Tensor std(const Tensor& x, const Dims& dims, bool keepdim, std::int64_t correction,
           bool across_ranks) {
  if (reduces_across(x, across_ranks)) {
    // As std's own gradient, that of a standard deviation of 0 is 0.
    const Tensor variance = variance_across("std", x, dims, keepdim, correction);
    const Tensor none = eq(variance, 0);
    return cast(masked_fill(sqrt(masked_fill(variance, none, 1)), none, 0), x.dtype());
  }
  return call_one(std_op, {x}, moments("std", x, dims, keepdim, correction));
}

}  // namespace tessera::ops
