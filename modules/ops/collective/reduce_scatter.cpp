// The shards of a reduction over the ranks: reduce_scatter.
module;
#include <cstdint>
#include <span>
#include <utility>
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

using collective::Communicator;
using collective::ReduceSegmentsOptions;
using collective::Segment;
using collective::Work;

void reduce_scatter_infer(const Call& call, ResultShapes& out) {
  const auto args = call.args<ReduceScatterArgs>();
  const int dim = checked_dim(call, args.dim);
  const Communicator& group = *args.group;
  const std::int64_t extent = call.in[0].shape()[dim];
  out.push_back({with_extent(call.in[0].shape(), dim, part_of(extent, group, group.rank()).length),
                 call.in[0].dtype()});
}

PendingTensor start_reduce_scatter(const Call& call, const Tensor& out) {
  const auto args = call.args<ReduceScatterArgs>();
  const int dim = checked_dim(call, args.dim);
  const ReduceOp op = args.op;
  Communicator& group = *args.group;
  const Tensor& x = call.in[0];
  if (x.numel() == 0) {
    return {out, {}, {}, {}};
  }
  if (in_rank_order(x.shape(), dim, group)) {
    const Tensor source = contiguous_operand(x);
    return {
        out,
        group.reduce_scatter_async(source.raw_data(), out.raw_data(), out.numel(), x.dtype(), op),
        {source},
        {}};
  }
  // A copy in either case: see all_gather.
  const Parts parts{x.shape(), dim, empty({x.numel()}, x.dtype()), group};
  for (int rank = 0; rank < group.size(); ++rank) {
    copy_into(parts.at(rank), parts.of(x, rank));
  }
  const Segment segment{parts.memory.raw_data(), out.raw_data(), parts.chunk(), x.numel()};
  ReduceSegmentsOptions options;
  options.reduce = op;
  Work work = group.reduce_scatter_async(std::span(&segment, 1), x.dtype(), options);
  return {out, std::move(work), {parts.memory}, {}};
}

void reduce_scatter_cpu(const Call& call, std::span<Tensor> out) {
  const auto args = call.args<ReduceScatterArgs>();
  const Tensor& x = call.in[0];
  if (x.is_contiguous() && in_rank_order(x.shape(), checked_dim(call, args.dim), *args.group)) {
    args.group->reduce_scatter(x.raw_data(), out[0].raw_data(), out[0].numel(), x.dtype(), args.op);
    return;
  }
  start_reduce_scatter(call, out[0]).wait();
}

const Op& reduce_scatter_op = register_op<ReduceScatterArgs>({
    .schema = "reduce_scatter(x)",
    .infer = reduce_scatter_infer,
    .cpu = reduce_scatter_cpu,
    .communicates = Communicates::reduce_scatter,
    .about = "Each rank's shard along a dim of the reduction over the ranks; local tensors.",
});

Attributes reduce_scatter_attributes(const Tensor& x, std::int64_t dim, ReduceOp op,
                                     Communicator& group) {
  return ReduceScatterArgs{wrap_dim(dim, x.dims(), "reduce_scatter"), op, {&group}};
}

}  // namespace

Tensor reduce_scatter(const Tensor& x, std::int64_t dim, ReduceOp op, Communicator& group) {
  return call_one(reduce_scatter_op, {x}, reduce_scatter_attributes(x, dim, op, group));
}

PendingTensor reduce_scatter_async(const Tensor& x, std::int64_t dim, ReduceOp op,
                                   Communicator& group) {
  return start(reduce_scatter_op, x, reduce_scatter_attributes(x, dim, op, group),
               start_reduce_scatter);
}

}  // namespace tessera::ops
