// Casts: the values in another type.
module;
#include <cstdint>
#include <span>

#include "pointwise/functions/comparisons.hpp"
#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :pointwise_call;

namespace tessera::ops {
namespace {

struct CastArgs {
  DType dtype;
};

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.args<CastArgs>().dtype});
}

void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  if (out[0].dtype() == call.in[0].dtype()) {
    if (!w.counts()) {
      operands::copy_elements(call.in[0], out[0]);
    }
    return;
  }
  const Tensor x = contiguous_operand(w, call.in[0]);
  if (w.counts()) {
    return;
  }
  kernels::cast(x.dtype(), out[0].dtype(), x.numel(), pointer<void>(x), pointer<void>(out[0]));
}

/// Between floating types rounding is monotone, and linear but for rounding.
void rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  if (is_floating(context.call.in[0].dtype()) && is_floating(context.out[0].dtype)) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min}) {
      strategies.push_back(rules::strategy({Partial(op)}, {Partial(op)}));
    }
  }
}

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] = cast(grads[0], context.in_dtypes[0]);
}

const Op& cast_op =
    register_op<CastArgs>({.schema = "cast(x)",
                           .infer = infer,
                           .cpu = in_workspace<cpu>,
                           .workspace = workspace_of_copies<cpu>,
                           .element = elementwise::element<functions::Identity>,
                           .rule = rule,
                           .backward = backward,
                           .moves_elements = true,
                           .about = "x in another type: rounded to nearest even between floating "
                                    "types, towards 0 to integers."});

}  // namespace

Tensor cast(const Tensor& x, DType dtype) {
  operands::given("cast", "x", x);
  return x.dtype() == dtype ? x : call_one(cast_op, {x}, CastArgs{dtype});
}

}  // namespace tessera::ops
