// A reduction over the ranks, on every one of them: all_reduce.
module;
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.collective;
import :kernel_call;
import :group_call;

namespace tessera::ops {
namespace {

using collective::CallKind;
using collective::Segment;

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
      args.group.communicator().all_reduce_async(data_of(x), data_of(out), x.numel(), x.dtype(),
                                                 args.op),
      std::vector{x});
}

void all_reduce_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  if (x.is_contiguous() && x.numel() > 0) {
    const auto args = call.args<AllReduceArgs>();
    args.group.communicator().all_reduce(data_of(x), data_of(out[0]), x.numel(), x.dtype(),
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
    .communicates = CallKind::all_reduce,
    .about = "The reduction over the ranks of the group, on every rank; local tensors.",
});

const Op& all_reduce_async_op = register_op<AllReduceArgs>({
    .schema = "all_reduce_async(x)",
    .infer = same_infer,
    .cpu = issued_on_host<AllReduceArgs, start_all_reduce>,
    .any_device = issued_in_stream<AllReduceArgs>,
    .communicates = CallKind::all_reduce,
    .issues = true,
    .about = "Issues an all_reduce; wait() completes its result; local tensors.",
});

const Op& all_reduce_in_place_op = register_op<AllReduceArgs>({
    .schema = "all_reduce_(x)",
    .cpu = all_reduce_in_place_cpu,
    .any_device = in_stream<AllReduceArgs>,
    .in_place = true,
    .communicates = CallKind::all_reduce,
    .about = "Writes the reduction over the ranks of the group into x; local tensors.",
});

struct CoalescedArgs {
  ReduceOp op;
  GroupArgument group;
  std::int64_t identity;
  Dynamic<std::int64_t> step;
};

std::unique_ptr<IssuedCollective> start_coalesced(const Call& call, const Tensor& first) {
  const auto [op, group, identity, step] = call.args<CoalescedArgs>();
  std::vector<Segment> segments;
  std::vector<Tensor> kept;
  segments.reserve(call.in.size());
  for (const Tensor& x : call.in) {
    if (!x.is_contiguous() || x.dtype() != call.in[0].dtype()) {
      refuse(call, {.wrong = "the tensors are not contiguous tensors of one type"});
    }
    void* const data = x.numel() > 0 ? data_of(x) : nullptr;
    segments.push_back({data, data, 0, x.numel()});
    if (&x.storage() != &first.storage()) {
      kept.push_back(x);
    }
  }
  bump_further_versions(call.in);
  check_given(group);
  const collective::PayloadIdentity moved{static_cast<std::int64_t>(
      hash_combine(static_cast<std::uint64_t>(identity), static_cast<std::uint64_t>(step.value)))};
  return std::make_unique<IssuedCollective>(
      group.whole().communicator().all_reduce_async(
          segments, first.dtype(), {.reduce = op, .terms = group.group->terms, .moved = moved}),
      std::move(kept));
}

const Op& coalesced_op = register_op<CoalescedArgs>({
    .schema = "all_reduce_coalesced_(tensors...)",
    .cpu = issued_on_host<CoalescedArgs, start_coalesced>,
    .any_device = issued_in_stream<CoalescedArgs>,
    .in_place = true,
    .communicates = CallKind::all_reduce,
    .issues = true,
    .about = "Issues the reduction of many tensors over the ranks, each in place; "
             "wait(tensors[0]) completes them; local tensors.",
});

}  // namespace

Tensor all_reduce(const Tensor& x, ReduceOp op, Ranks group) {
  const PeersReadScope scope;  // they read this rank's piece of the result
  return call_one(all_reduce_op, {x}, AllReduceArgs{op, group});
}

void all_reduce_(const Tensor& x, ReduceOp op, Ranks group) {
  call_one(all_reduce_in_place_op, {x}, AllReduceArgs{op, group});
}

void all_reduce_coalesced_(std::span<const Tensor> tensors, ReduceOp op, Ranks group,
                           std::int64_t identity, const Count& step) {
  call(coalesced_op, tensors, CoalescedArgs{op, group, identity, step});
}

PendingTensor all_reduce_async(const Tensor& x, ReduceOp op, Ranks group) {
  const PeersReadScope scope;
  return issue(all_reduce_async_op, {x}, AllReduceArgs{op, group});
}

}  // namespace tessera::ops
