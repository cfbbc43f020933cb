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

using collective::Communicator;
using collective::ReduceSegmentsOptions;
using collective::Segment;
using collective::Work;

void reduce_scatter_infer(const Call& call, ResultShapes& out) {
  AttributeReader attributes = call.read();
  const int dim = attributes.dim();
  attributes.integer();
  check_dim(call, dim);
  const Communicator& group = group_at(attributes);
  const std::int64_t extent = call.in[0].shape()[dim];
  out.push_back({with_extent(call.in[0].shape(), dim, part_of(extent, group, group.rank()).length),
                 call.in[0].dtype()});
}

PendingTensor start_reduce_scatter(const Call& call, const Tensor& out) {
  AttributeReader attributes = call.read();
  const int dim = attributes.dim();
  const auto op = static_cast<ReduceOp>(attributes.integer());
  Communicator& group = group_at(attributes);
  const Tensor& x = call.in[0];
  if (x.numel() == 0) {
    return {out, {}, {}, {}};
  }
  const std::int64_t extent = x.shape()[dim];
  if (extent % group.size() == 0 && is_outermost(x.shape(), dim)) {
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
  start_reduce_scatter(call, out[0]).wait();
}

const Op& reduce_scatter_op = register_op({
    .schema = "reduce_scatter(x; dim: int, op: int, group: communicator)",
    .infer = reduce_scatter_infer,
    .cpu = reduce_scatter_cpu,
    .about = "The reduction over the ranks, of which each keeps its shard of a dim; local tensors.",
});

Attributes reduce_scatter_attributes(const Tensor& x, std::int64_t dim, ReduceOp op,
                                     Communicator& group) {
  return Attributes()
      .add(wrap_dim(dim, x.dims(), "reduce_scatter"))
      .add(static_cast<int>(op))
      .add_pointer(&group);
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
