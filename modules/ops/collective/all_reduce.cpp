// A reduction over the ranks, on every one of them: all_reduce.
module;
#include <memory>
#include <span>
#include <vector>
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

void same_infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

std::unique_ptr<IssuedCollective> start_all_reduce(const Call& call, const Tensor& out) {
  const auto args = call.args<AllReduceArgs>();
  const Tensor x = contiguous_operand(call.in[0]);
  if (x.numel() == 0) {
    return std::make_unique<IssuedCollective>();
  }
  return std::make_unique<IssuedCollective>(
      args.group.communicator().all_reduce_async(x.raw_data(), out.raw_data(), x.numel(), x.dtype(),
                                                 args.op),
      std::vector{x});
}

void all_reduce_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  if (x.is_contiguous() && x.numel() > 0) {
    const auto args = call.args<AllReduceArgs>();
    args.group.communicator().all_reduce(x.raw_data(), out[0].raw_data(), x.numel(), x.dtype(),
                                         args.op);
    return;
  }
  start_all_reduce(call, out[0])->complete(out[0]);
}

void all_reduce_in_place_cpu(const Call& call, std::span<Tensor> out) {
  if (!call.in[0].is_contiguous()) {
    refuse(call, "x is not contiguous; pass a contiguous tensor");
  }
  all_reduce_cpu(call, out);
}

const Op& all_reduce_op = register_op<AllReduceArgs>({
    .schema = "all_reduce(x)",
    .infer = same_infer,
    .cpu = all_reduce_cpu,
    .any_device = in_stream<AllReduceArgs>,
    .communicates = Communicates::all_reduce,
    .about = "The reduction over the ranks of the group, on every rank; local tensors.",
});

const Op& all_reduce_async_op = register_op<AllReduceArgs>({
    .schema = "all_reduce_async(x)",
    .infer = same_infer,
    .cpu = issued_on_host<AllReduceArgs, start_all_reduce>,
    .any_device = issued_in_stream<AllReduceArgs>,
    .communicates = Communicates::all_reduce,
    .about = "Issues an all_reduce; wait() completes its result; local tensors.",
});

const Op& all_reduce_in_place_op = register_op<AllReduceArgs>({
    .schema = "all_reduce_(x)",
    .cpu = all_reduce_in_place_cpu,
    .any_device = in_stream<AllReduceArgs>,
    .in_place = true,
    .communicates = Communicates::all_reduce,
    .about = "Writes the reduction over the ranks of the group into x; local tensors.",
});

}  // namespace

Tensor all_reduce(const Tensor& x, ReduceOp op, Ranks group) {
  return call_one(all_reduce_op, {x}, AllReduceArgs{op, group});
}

void all_reduce_(const Tensor& x, ReduceOp op, Ranks group) {
  call_one(all_reduce_in_place_op, {x}, AllReduceArgs{op, group});
}

PendingTensor all_reduce_async(const Tensor& x, ReduceOp op, Ranks group) {
  return issue(all_reduce_async_op, x, AllReduceArgs{op, group});
}

}  // namespace tessera::ops
