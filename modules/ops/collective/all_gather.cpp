// The shards of all ranks along a dim: all_gather.
module;
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import tessera.collective;
import :kernel_call;
import :group_call;

namespace tessera::ops {
namespace {

struct AllGatherArgs {
  std::int64_t dim;
  std::int64_t extent;
  GroupArgument group;
};

using collective::CallKind;
using collective::Segment;
using collective::Work;

void all_gather_infer(const Call& call, ResultShapes& out) {
  const auto args = call.args<AllGatherArgs>();
  const int dim = checked_part(call, args.dim, args.extent, args.group);
  out.push_back({with_extent(call.in[0].shape(), dim, args.extent), call.in[0].dtype()});
}

/// Each collective in two parts: issue it, and complete the result when the data has come. `whole`
/// is the result, of the shape that infer found.
std::unique_ptr<IssuedCollective> start_all_gather(const Call& call, const Tensor& whole) {
  const auto args = call.args<AllGatherArgs>();
  const int dim = checked_dim(call, args.dim);
  if (whole.numel() == 0) {
    return std::make_unique<IssuedCollective>();  // on every rank
  }
  collective::Communicator& group = args.group.communicator();
  const Tensor shard = contiguous_operand(call.in[0]);
  if (in_rank_order(whole.shape(), dim, args.group)) {
    return std::make_unique<IssuedCollective>(
        group.all_gather_async(data_of(shard), data_of(whole), shard.numel(), shard.dtype()),
        std::vector{shard});
  }
  const bool direct = is_outermost(whole.shape(), dim);
  const Parts parts{whole.shape(), dim,
                    direct ? Tensor() : empty({whole.numel()}, whole.dtype(), whole.device()),
                    args.group};
  const Tensor& memory = direct ? whole : parts.memory;
  // Peers may read a segment's source after wait(), if they can reach it: this copy they cannot.
  const Tensor own = empty(shard.shape(), shard.dtype(), shard.device());
  copy_into(own, shard);
  const Segment segment{data_of(own), data_of(memory), parts.chunk(), whole.numel()};
  Work work = group.all_gather_async(std::span(&segment, 1), shard.dtype());
  return std::make_unique<IssuedCollective>(
      std::move(work), std::vector{own}, [parts](const Tensor& result) {
        for (int rank = 0; parts.memory && rank < parts.group.size(); ++rank) {
          copy_into(parts.of(result, rank), parts.at(rank));
        }
      });
}

void all_gather_cpu(const Call& call, std::span<Tensor> out) {
  const auto args = call.args<AllGatherArgs>();
  const Tensor& shard = call.in[0];
  if (shard.is_contiguous() &&
      in_rank_order(out[0].shape(), checked_dim(call, args.dim), args.group)) {
    // Without what a collective in progress needs.
    args.group.communicator().all_gather(data_of(shard), data_of(out[0]), shard.numel(),
                                         shard.dtype());
    return;
  }
  start_all_gather(call, out[0])->complete(out[0]);
}

const Op& all_gather_op = register_op<AllGatherArgs>({
    .schema = "all_gather(shard)",
    .infer = all_gather_infer,
    .cpu = all_gather_cpu,
    .any_device = in_stream<AllGatherArgs>,
    .communicates = CallKind::all_gather,
    .moves_elements = true,
    .about = "The whole tensor on every rank of the group, from shards along a dim; local tensors.",
});

const Op& all_gather_async_op = register_op<AllGatherArgs>({
    .schema = "all_gather_async(shard)",
    .infer = all_gather_infer,
    .cpu = issued_on_host<AllGatherArgs, start_all_gather>,
    .any_device = issued_in_stream<AllGatherArgs>,
    .communicates = CallKind::all_gather,
    .issues = true,
    .moves_elements = true,
    .about = "Issues an all_gather; wait() completes its result; local tensors.",
});

Attributes all_gather_attributes(const Tensor& shard, std::int64_t dim, std::int64_t extent,
                                 GroupArgument group) {
  return AllGatherArgs{wrap_dim(dim, shard.dims(), "all_gather"), extent, group};
}

}  // namespace

Tensor all_gather(const Tensor& shard, std::int64_t dim, std::int64_t extent, Ranks group) {
  return call_one(all_gather_op, {shard}, all_gather_attributes(shard, dim, extent, group));
}

PendingTensor all_gather_async(const Tensor& shard, std::int64_t dim, std::int64_t extent,
                               Ranks group) {
  return issue(all_gather_async_op, {shard}, all_gather_attributes(shard, dim, extent, group));
}

}  // namespace tessera::ops
