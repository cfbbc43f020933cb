// Collectives of local tensors. A shard of an outer dim lies in one piece and is moved where it is;
// shards of inner dims are packed first.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernels/pointwise.hpp"
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
using collective::Work;

/// Whether parts of `dim` lie in one piece, one after another.
bool is_outermost(const Dims& shape, int dim) {
  return std::all_of(shape.begin(), shape.begin() + dim, [](std::int64_t d) { return d == 1; });
}

std::size_t bytes_of(const Tensor& x) {
  return static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
}

/// [ranks, shape with `dim` cut to a chunk]: room for a padded part of each rank.
Tensor padded_parts(const Dims& shape, int dim, std::int64_t extent, int ranks, DType dtype) {
  Dims padded = with_extent(shape, dim, chunk_size(extent, ranks));
  padded.insert(0, ranks);
  return empty(padded, dtype);
}

/// The first `length` of rank `rank`'s padded part, along `dim` of the tensor.
Tensor part_at(const Tensor& parts, int rank, int dim, std::int64_t length) {
  const Tensor row = narrowed_operand(parts, 0, rank, 1);
  Dims shape = row.shape();
  Dims strides = row.strides();
  shape.erase(0);
  strides.erase(0);
  return narrowed_operand(alias(row, shape, strides, row.offset()), dim, 0, length);
}

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
  const Tensor parts = padded_parts(whole.shape(), dim, extent, group.size(), shard.dtype());
  const Tensor mine = part_at(parts, group.rank(), dim, shard.shape()[dim]);
  copy_into(mine, shard);
  const std::int64_t count = parts.numel() / group.size();
  const std::byte* const own = static_cast<const std::byte*>(parts.raw_data()) +
                               bytes_of(parts) / static_cast<std::size_t>(group.size()) *
                                   static_cast<std::size_t>(group.rank());
  return {whole,
          group.all_gather_async(own, parts.raw_data(), count, shard.dtype()),
          {},
          [whole, parts, dim, extent, &group] {
            for (int rank = 0; rank < group.size(); ++rank) {
              const ShardRange range = part_of(extent, group, rank);
              copy_into(narrowed_operand(whole, dim, range.begin, range.length),
                        part_at(parts, rank, dim, range.length));
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
  const Tensor parts = padded_parts(x.shape(), dim, extent, group.size(), x.dtype());
  std::memset(parts.raw_data(), 0, bytes_of(parts));  // what is padded is reduced too
  for (int rank = 0; rank < group.size(); ++rank) {
    const ShardRange range = part_of(extent, group, rank);
    copy_into(part_at(parts, rank, dim, range.length),
              narrowed_operand(x, dim, range.begin, range.length));
  }
  Dims chunk = x.shape();
  chunk[dim] = chunk_size(extent, group.size());
  const Tensor mine = empty(chunk, x.dtype());
  return {
      out,
      group.reduce_scatter_async(parts.raw_data(), mine.raw_data(), mine.numel(), x.dtype(), op),
      {parts},
      [out, mine, dim] { copy_into(out, narrowed_operand(mine, dim, 0, out.shape()[dim])); }};
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
