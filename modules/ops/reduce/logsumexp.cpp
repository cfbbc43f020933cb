// The logarithm of the sum of exponentials over dims: logsumexp.
module;
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

void logsumexp_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const operands::ReducedOperand r =
      reduced_operand(w, call.in[0], operands::reduced_dims(call).dims);
  kernels::log_sum_exp(w, r.x.dtype(), {r.outer, r.reduced, r.inner}, pointer<void>(w, r.x),
                       pointer<void>(w, out[0]));
}

/// Each element's share of the sum: exp(x - y).
void logsumexp_backward(const BackwardContext& context, std::span<const Tensor> grads,
                        std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  const ReducedDims a = operands::reduced_dims(context);
  const Tensor whole = operands::spread(context.out[0], a.dims, a.keepdim, x.shape());
  const Tensor g = operands::spread(grads[0], a.dims, a.keepdim, x.shape());
  out[0] = mul(g, exp(sub(x, whole)));
}

const Op& logsumexp_op =
    register_op<operands::ReducedDims>({.schema = "logsumexp(x)",
                                        .infer = infer_floating_reduction,
                                        .cpu = in_workspace<logsumexp_cpu>,
                                        .workspace = workspace_of<logsumexp_cpu>,
                                        .rule = kept_dims_rule,
                                        .backward = logsumexp_backward,
                                        .saves_inputs = saves_all,
                                        .saves_outputs = saves_all,
                                        .about = "log(sum(exp(x))) over dims, without overflow."});

}  // namespace

Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim, bool across_ranks) {
  operands::given("logsumexp", "x", x);
  if (!across_ranks || !x.is_distributed() || x.dims() == 0) {
    return operands::call_reduction(logsumexp_op, x, dims, keepdim);
  }
  operands::check_floating("logsumexp", x);
  const Dims sorted = operands::sorted_dims("logsumexp", dims, x.dims());
  const Tensor wide = cast(x, statistics_type(x.dtype()));
  if (x.numel() == 0) {  // a sum without terms: -infinity
    const Tensor total = operands::whole_sum(sum(exp(wide), sorted, true));
    return cast(without_dims(log(total), sorted, keepdim), x.dtype());
  }
  Tensor reference;
  {
    const NoGrad constant;  // any finite number gives the same result
    reference = amax(wide, sorted, true, true);
    reference = masked_fill(reference, logical_not(isfinite(reference)), 0);
  }
  const Tensor total = operands::whole_sum(sum(exp(sub(wide, reference)), sorted, true));
  return cast(without_dims(add(log(total), reference), sorted, keepdim), x.dtype());
}

}  // namespace tessera::ops
