// A reduction over the ranks, on every one of them: all_reduce.
module;
#include <span>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import tessera.collective;
import :kernel_call;
import :group_call;

namespace tessera::ops {
namespace {

struct AllReduceArgs {
  ReduceOp op;
  GroupArgument group;
};

using collective::Communicator;

void same_infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

PendingTensor start_all_reduce(const Call& call, const Tensor& out) {
  const auto args = call.args<AllReduceArgs>();
  const Tensor x = contiguous_operand(call.in[0]);
  if (x.numel() == 0) {
    return {out, {}, {}, {}};
  }
  return {out,
          args.group->all_reduce_async(x.raw_data(), out.raw_data(), x.numel(), x.dtype(), args.op),
          {x},
          {}};
}

void all_reduce_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  if (x.is_contiguous() && x.numel() > 0) {
    const auto args = call.args<AllReduceArgs>();
    args.group->all_reduce(x.raw_data(), out[0].raw_data(), x.numel(), x.dtype(), args.op);
    return;
  }
  start_all_reduce(call, out[0]).wait();
}

const Op& all_reduce_op = register_op<AllReduceArgs>({
    .schema = "all_reduce(x)",
    .infer = same_infer,
    .cpu = all_reduce_cpu,
    .communicates = Communicates::all_reduce,
    .about = "The reduction over the ranks of the group, on every rank; local tensors.",
});

Attributes all_reduce_attributes(ReduceOp op, Communicator& group) {
  return AllReduceArgs{op, {&group}};
}

}  // namespace

Tensor all_reduce(const Tensor& x, ReduceOp op, Communicator& group) {
  return call_one(all_reduce_op, {x}, all_reduce_attributes(op, group));
}

PendingTensor all_reduce_async(const Tensor& x, ReduceOp op, Communicator& group) {
  return start(all_reduce_op, x, all_reduce_attributes(op, group), start_all_reduce);
}

}  // namespace tessera::ops
