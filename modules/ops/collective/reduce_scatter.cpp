// The shards of a reduction over the ranks: reduce_scatter.
module;
#include <cstdint>
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

struct ReduceScatterArgs {
  std::int64_t dim;
  ReduceOp op;
  GroupArgument group;
};

using collective::CallKind;
using collective::ReduceSegmentsOptions;
using collective::Segment;

void reduce_scatter_infer(const Call& call, ResultShapes& out) {
  const auto args = call.args<ReduceScatterArgs>();
  const int dim = checked_dim(call, args.dim);
  const std::int64_t extent = call.in[0].shape()[dim];
  out.push_back(
      {with_extent(call.in[0].shape(), dim, part_of(extent, args.group, args.group.rank()).length),
       call.in[0].dtype()});
}

std::unique_ptr<IssuedCollective> start_reduce_scatter(const Call& call, const Tensor& out) {
  const auto args = call.args<ReduceScatterArgs>();
  const int dim = checked_dim(call, args.dim);
  const Tensor& x = call.in[0];
  if (x.numel() == 0) {
    return std::make_unique<IssuedCollective>();
  }
  collective::Communicator& group = args.group.communicator();
  if (in_rank_order(x.shape(), dim, args.group)) {
    const Tensor source = contiguous_operand(x);
    return std::make_unique<IssuedCollective>(
        group.reduce_scatter_async(data_of(source), data_of(out), out.numel(), x.dtype(), args.op),
        std::vector{source});
  }
  // A copy in either case: see all_gather.
  const Parts parts{x.shape(), dim, empty({x.numel()}, x.dtype(), x.device()), args.group};
  for (int rank = 0; rank < args.group.size(); ++rank) {
    copy_into(parts.at(rank), parts.of(x, rank));
  }
  const Segment segment{data_of(parts.memory), data_of(out), parts.chunk(), x.numel()};
  ReduceSegmentsOptions options;
  options.reduce = args.op;
  return std::make_unique<IssuedCollective>(
      group.reduce_scatter_async(std::span(&segment, 1), x.dtype(), options),
      std::vector{parts.memory});
}

void reduce_scatter_cpu(const Call& call, std::span<Tensor> out) {
  const auto args = call.args<ReduceScatterArgs>();
  const Tensor& x = call.in[0];
  if (x.is_contiguous() && in_rank_order(x.shape(), checked_dim(call, args.dim), args.group)) {
    args.group.communicator().reduce_scatter(data_of(x), data_of(out[0]), out[0].numel(), x.dtype(),
                                             args.op);
    return;
  }
  start_reduce_scatter(call, out[0])->complete(out[0]);
}

const Op& reduce_scatter_op = register_op<ReduceScatterArgs>({
    .schema = "reduce_scatter(x)",
    .infer = reduce_scatter_infer,
    .cpu = reduce_scatter_cpu,
    .any_device = in_stream<ReduceScatterArgs>,
    .communicates = CallKind::reduce_scatter,
    .about = "Each rank's shard along a dim of the reduction over the ranks; local tensors.",
});

const Op& reduce_scatter_async_op = register_op<ReduceScatterArgs>({
    .schema = "reduce_scatter_async(x)",
    .infer = reduce_scatter_infer,
    .cpu = issued_on_host<ReduceScatterArgs, start_reduce_scatter>,
    .any_device = issued_in_stream<ReduceScatterArgs>,
    .communicates = CallKind::reduce_scatter,
    .issues = true,
    .about = "Issues a reduce_scatter; wait() completes its result; local tensors.",
});

Attributes reduce_scatter_attributes(const Tensor& x, std::int64_t dim, ReduceOp op,
                                     GroupArgument group) {
  return ReduceScatterArgs{wrap_dim(dim, x.dims(), "reduce_scatter"), op, group};
}

}  // namespace

Tensor reduce_scatter(const Tensor& x, std::int64_t dim, ReduceOp op, Ranks group) {
  return call_one(reduce_scatter_op, {x}, reduce_scatter_attributes(x, dim, op, group));
}

PendingTensor reduce_scatter_async(const Tensor& x, std::int64_t dim, ReduceOp op, Ranks group) {
  return issue(reduce_scatter_async_op, {x}, reduce_scatter_attributes(x, dim, op, group));
}

}  // namespace tessera::ops
