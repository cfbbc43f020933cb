// How many elements over dims are not 0: count_nonzero.
module;
#include <cstdint>
#include <span>

#include "pointwise/kernels/pointwise.hpp"
#include "reduce/kernels/reduce.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

struct CountArgs {
  Dims dims;
};

Dims counted_dims(const Call& call) {
  return operands::sorted_dims("count_nonzero", call.args<CountArgs>().dims, call.in[0].dims());
}

void infer_count(const Call& call, ResultShapes& out) {
  out.push_back(
      {operands::reduced_shape(call.in[0].shape(), counted_dims(call), false), DType::i64});
}

void count_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const operands::ReducedOperand r = reduced_operand(w, call.in[0], counted_dims(call));
  const Tensor holds = temporary(w, r.x.shape(), DType::boolean);
  if (!w.counts()) {
    kernels::cast(r.x.dtype(), DType::boolean, r.x.numel(), pointer<void>(r.x),
                  pointer<void>(holds));
  }
  kernels::reduce(w, kernels::ReduceOp::sum, DType::boolean, {r.outer, r.reduced, r.inner},
                  pointer<void>(w, holds), pointer<void>(w, out[0]));
}

void count_rule(const RuleContext& context, Strategies& strategies) {
  const Dims dims = counted_dims(context.call);
  rules::kept_dims(context, strategies, dims, false);
  for (const std::int64_t d : dims) {
    strategies.push_back(rules::strategy({Shard(static_cast<int>(d))}, {Partial()}));
  }
}

const Op& count_op = register_op<CountArgs>(
    {.schema = "count_nonzero(x)",
     .infer = infer_count,
     .cpu = in_workspace<count_cpu>,
     .workspace = workspace_of<count_cpu>,
     .rule = count_rule,
     .about = "The number of elements over dims (none: all) that are not 0."});

}  // namespace

Tensor count_nonzero(const Tensor& x, const Dims& dims) {
  operands::given("count_nonzero", "x", x);
  return call_one(count_op, {x}, CountArgs{operands::sorted_dims("count_nonzero", dims, x.dims())});
}

}  // namespace tessera::ops
