// Collectives of local tensors. A shard of an outer dim lies in one piece and is moved where it is;
// shards of inner dims are packed first.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

module tessera.ops;

import tessera.base;
import tessera.placement;
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

/// Whether parts of `dim` lie in one piece, one after another.
bool is_outermost(const Dims& shape, int dim) {
  return std::all_of(shape.begin(), shape.begin() + dim, [](std::int64_t d) { return d == 1; });
}

/// The parts of a tensor of `shape` cut along `dim`, each in one piece, one behind the other by
/// rank; none is padded. All but the last ones are of one length, so they are a Segment's pieces.
struct Parts {
  Dims shape;
  int dim;
  Tensor memory;  // of all elements; the tensor itself where its parts lie so already
  const Communicator& group;

  std::int64_t extent() const { return shape[dim]; }
  std::int64_t chunk() const {
    return with_extent(shape, dim, chunk_size(extent(), group.size())).product();
  }
  /// Rank `rank`'s part, and the same part of a tensor of the whole shape.
  Tensor at(int rank) const {
    const Dims part = with_extent(shape, dim, part_of(extent(), group, rank).length);
    const std::int64_t first = std::min(memory.numel(), chunk() * rank);
    return alias(memory, part, contiguous_strides(part), memory.offset() + first);
  }
  Tensor of(const Tensor& whole, int rank) const {
    const ShardRange range = part_of(extent(), group, rank);
    return narrowed_operand(whole, dim, range.begin, range.length);
  }
};

// all_gather

void all_gather_infer(const Call& call, ResultShapes& out) {
  AttributeReader attributes = call.read();
  const int dim = attributes.dim();
  const std::int64_t extent = attributes.integer();
  check_part(call, dim, extent, group_at(attributes));
  out.push_back({with_extent(call.in[0].shape(), dim, extent), call.in[0].dtype()});
}

/// Each collective in two parts: issue it, and make the result when the data has come. `out` is the
/// result, of the shape that infer found.
PendingTensor start_all_gather(const Call& call, const Tensor& whole) {
  AttributeReader attributes = call.read();
  const int dim = attributes.dim();
  const std::int64_t extent = attributes.integer();
  Communicator& group = group_at(attributes);
  if (whole.numel() == 0) {
    return {whole, {}, {}, {}};  // on every rank
  }
  const Tensor shard = contiguous_operand(call.in[0]);
  if (extent % group.size() == 0 && is_outermost(whole.shape(), dim)) {
    return {
        whole,
        group.all_gather_async(shard.raw_data(), whole.raw_data(), shard.numel(), shard.dtype()),
        {shard},
        {}};
  }
  const bool direct = is_outermost(whole.shape(), dim);
  const Parts parts{whole.shape(), dim, direct ? whole : empty({whole.numel()}, whole.dtype()),
                    group};
  // Peers may read a segment's source after wait(), if they can reach it: this copy they cannot.
  const Tensor own = empty(shard.shape(), shard.dtype());
  copy_into(own, shard);
  const Segment segment{own.raw_data(), parts.memory.raw_data(), parts.chunk(), whole.numel()};
  Work work = group.all_gather_async(std::span(&segment, 1), shard.dtype());
  if (direct) {
    return {whole, std::move(work), {own}, {}};
  }
  return {whole, std::move(work), {own}, [whole, parts] {
            for (int rank = 0; rank < parts.group.size(); ++rank) {
              copy_into(parts.of(whole, rank), parts.at(rank));
            }
          }};
}

void all_gather_cpu(const Call& call, std::span<Tensor> out) {
  start_all_gather(call, out[0]).wait();
}

const Op& all_gather_op = register_op({
    .schema = "all_gather(shard; dim: int, extent: int, group: communicator)",
    .infer = all_gather_infer,
    .cpu = all_gather_cpu,
    .about = "Shards of a dim become the whole on every rank of the group; local tensors.",
});

// reduce_scatter

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

// all_reduce and broadcast

void same_infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

PendingTensor start_all_reduce(const Call& call, const Tensor& out) {
  AttributeReader attributes = call.read();
  const auto op = static_cast<ReduceOp>(attributes.integer());
  const Tensor x = contiguous_operand(call.in[0]);
  if (x.numel() == 0) {
    return {out, {}, {}, {}};
  }
  return {
      out,
      group_at(attributes).all_reduce_async(x.raw_data(), out.raw_data(), x.numel(), x.dtype(), op),
      {x},
      {}};
}

void all_reduce_cpu(const Call& call, std::span<Tensor> out) {
  start_all_reduce(call, out[0]).wait();
}

const Op& all_reduce_op = register_op({
    .schema = "all_reduce(x; op: int, group: communicator)",
    .infer = same_infer,
    .cpu = all_reduce_cpu,
    .about = "The reduction over the ranks of the group, on every one of them; local tensors.",
});

void broadcast_cpu(const Call& call, std::span<Tensor> out) {
  AttributeReader attributes = call.read();
  const int root = attributes.dim();
  Communicator& group = group_at(attributes);
  if (out[0].numel() == 0) {
    return;
  }
  if (group.rank() == root) {
    copy_into(out[0], call.in[0]);
  }
  group.broadcast(out[0].raw_data(), out[0].numel(), out[0].dtype(), root);
}

const Op& broadcast_op = register_op({
    .schema = "broadcast(x; root: int, group: communicator)",
    .infer = same_infer,
    .cpu = broadcast_cpu,
    .about = "The root's x on every rank of the group; local tensors.",
});

}  // namespace

namespace {

Attributes all_gather_attributes(const Tensor& shard, std::int64_t dim, std::int64_t extent,
                                 Communicator& group) {
  return Attributes()
      .add(wrap_dim(dim, shard.dims(), "all_gather"))
      .add(extent)
      .add_pointer(&group);
}

Attributes reduce_scatter_attributes(const Tensor& x, std::int64_t dim, ReduceOp op,
                                     Communicator& group) {
  return Attributes()
      .add(wrap_dim(dim, x.dims(), "reduce_scatter"))
      .add(static_cast<int>(op))
      .add_pointer(&group);
}

Attributes all_reduce_attributes(ReduceOp op, Communicator& group) {
  return Attributes().add(static_cast<int>(op)).add_pointer(&group);
}

}  // namespace

Tensor all_gather(const Tensor& shard, std::int64_t dim, std::int64_t extent, Communicator& group) {
  return call_one(all_gather_op, {shard}, all_gather_attributes(shard, dim, extent, group));
}

Tensor reduce_scatter(const Tensor& x, std::int64_t dim, ReduceOp op, Communicator& group) {
  return call_one(reduce_scatter_op, {x}, reduce_scatter_attributes(x, dim, op, group));
}

Tensor all_reduce(const Tensor& x, ReduceOp op, Communicator& group) {
  return call_one(all_reduce_op, {x}, all_reduce_attributes(op, group));
}

PendingTensor all_gather_async(const Tensor& shard, std::int64_t dim, std::int64_t extent,
                               Communicator& group) {
  return start(all_gather_op, shard, all_gather_attributes(shard, dim, extent, group),
               start_all_gather);
}

PendingTensor reduce_scatter_async(const Tensor& x, std::int64_t dim, ReduceOp op,
                                   Communicator& group) {
  return start(reduce_scatter_op, x, reduce_scatter_attributes(x, dim, op, group),
               start_reduce_scatter);
}

PendingTensor all_reduce_async(const Tensor& x, ReduceOp op, Communicator& group) {
  return start(all_reduce_op, x, all_reduce_attributes(op, group), start_all_reduce);
}

Tensor broadcast(const Tensor& x, int root, Communicator& group) {
  return call_one(broadcast_op, {x}, Attributes().add(root).add_pointer(&group));
}

}  // namespace tessera::ops
