// Collectives of local tensors. A shard of an outer dim lies in one piece and is moved where it is;
// shards of inner dims are packed first.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/pointwise.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import :kernel_call;

namespace tessera::ops {
namespace {

using collective::Communicator;

/// The group is an address among the attributes; calls of one communicator are one after another.
Communicator& group_at(AttributeReader& attributes) {
  return *const_cast<Communicator*>(attributes.pointer<Communicator>());
}

/// A reduction, in whichever enum the receiver names it: the enumerators are the same.
struct AnyReduceOp {
  std::int64_t op;
  template <class E>
    requires std::is_enum_v<E>
  operator E() const {
    return static_cast<E>(op);
  }
};

/// The part of `extent` elements that rank `rank` of the group holds.
ShardRange part_of(std::int64_t extent, const Communicator& group, int rank) {
  return chunk_of({0, extent}, group.size(), rank);
}

/// Whether parts of `dim` lie in one piece, one after another.
bool is_outermost(const Dims& shape, int dim) {
  return std::all_of(shape.begin(), shape.begin() + dim, [](std::int64_t d) { return d == 1; });
}

std::size_t bytes_of(const Tensor& x) {
  return static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
}

Dims with_extent(const Dims& shape, int dim, std::int64_t extent) {
  Dims changed = shape;
  changed[dim] = extent;
  return changed;
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

void check_dim(const Call& call, int dim) {
  if (dim < 0 || dim >= call.in[0].dims()) {
    refuse(call, fmt::format("dim {} is out of range for {}", dim, to_string(call.in[0].shape())));
  }
}

void check_part(const Call& call, int dim, std::int64_t extent, const Communicator& group) {
  check_dim(call, dim);
  const std::int64_t expected = part_of(extent, group, group.rank()).length;
  if (call.in[0].shape()[dim] != expected) {
    refuse(call, fmt::format("rank {} of {} has a shard of {} in dim {} (expected {} of {})",
                             group.rank(), group.size(), to_string(call.in[0].shape()), dim,
                             expected, extent));
  }
}

// all_gather

void all_gather_infer(const Call& call, ResultShapes& out) {
  AttributeReader attributes = call.read();
  const int dim = attributes.dim();
  const std::int64_t extent = attributes.integer();
  check_part(call, dim, extent, group_at(attributes));
  out.push_back({with_extent(call.in[0].shape(), dim, extent), call.in[0].dtype()});
}

void all_gather_cpu(const Call& call, std::span<Tensor> out) {
  AttributeReader attributes = call.read();
  const int dim = attributes.dim();
  const std::int64_t extent = attributes.integer();
  Communicator& group = group_at(attributes);
  const Tensor& whole = out[0];
  if (whole.numel() == 0) {
    return;  // on every rank
  }
  const Tensor shard = contiguous_operand(call.in[0]);
  if (extent % group.size() == 0 && is_outermost(whole.shape(), dim)) {
    group.all_gather(shard.raw_data(), whole.raw_data(), shard.numel(), shard.dtype());
    return;
  }
  const Tensor parts = padded_parts(whole.shape(), dim, extent, group.size(), shard.dtype());
  const Tensor mine = part_at(parts, group.rank(), dim, shard.shape()[dim]);
  copy_into(mine, shard);
  const std::int64_t count = parts.numel() / group.size();
  const std::byte* const own = static_cast<const std::byte*>(parts.raw_data()) +
                               bytes_of(parts) / static_cast<std::size_t>(group.size()) *
                                   static_cast<std::size_t>(group.rank());
  group.all_gather(own, parts.raw_data(), count, shard.dtype());
  for (int rank = 0; rank < group.size(); ++rank) {
    const ShardRange range = part_of(extent, group, rank);
    copy_into(narrowed_operand(whole, dim, range.begin, range.length),
              part_at(parts, rank, dim, range.length));
  }
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

void reduce_scatter_cpu(const Call& call, std::span<Tensor> out) {
  AttributeReader attributes = call.read();
  const int dim = attributes.dim();
  const AnyReduceOp op{attributes.integer()};
  Communicator& group = group_at(attributes);
  const Tensor& x = call.in[0];
  if (x.numel() == 0) {
    return;
  }
  const std::int64_t extent = x.shape()[dim];
  if (extent % group.size() == 0 && is_outermost(x.shape(), dim)) {
    const Tensor source = contiguous_operand(x);
    group.reduce_scatter(source.raw_data(), out[0].raw_data(), out[0].numel(), x.dtype(), op);
    return;
  }
  const Tensor parts = padded_parts(x.shape(), dim, extent, group.size(), x.dtype());
  std::memset(parts.raw_data(), 0, bytes_of(parts));  // what is padded is reduced too
  for (int rank = 0; rank < group.size(); ++rank) {
    const ShardRange range = part_of(extent, group, rank);
    copy_into(part_at(parts, rank, dim, range.length),
              narrowed_operand(x, dim, range.begin, range.length));
  }
  const std::int64_t count = parts.numel() / group.size();
  const Tensor mine = padded_parts(x.shape(), dim, extent, group.size(), x.dtype());
  group.reduce_scatter(parts.raw_data(), mine.raw_data(), count, x.dtype(), op);
  copy_into(out[0], part_at(mine, 0, dim, out[0].shape()[dim]));
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

void all_reduce_cpu(const Call& call, std::span<Tensor> out) {
  AttributeReader attributes = call.read();
  const AnyReduceOp op{attributes.integer()};
  const Tensor x = contiguous_operand(call.in[0]);
  if (x.numel() != 0) {
    group_at(attributes).all_reduce(x.raw_data(), out[0].raw_data(), x.numel(), x.dtype(), op);
  }
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

// all_to_all

void all_to_all_infer(const Call& call, ResultShapes& out) {
  AttributeReader attributes = call.read();
  const int from = attributes.dim();
  const std::int64_t extent = attributes.integer();
  const int to = attributes.dim();
  const Communicator& group = group_at(attributes);
  check_part(call, from, extent, group);
  check_dim(call, to);
  if (from == to) {
    refuse(call, fmt::format("from_dim and to_dim are both {}", from));
  }
  Dims shape = with_extent(call.in[0].shape(), from, extent);
  shape[to] = part_of(shape[to], group, group.rank()).length;
  out.push_back({shape, call.in[0].dtype()});
}

/// Packed boxes, one after another, one for each rank.
struct Boxes {
  std::vector<Tensor> tensors;  // views of the whole tensor
  std::vector<std::int64_t> counts;
  Tensor packed;

  Boxes(const Tensor& whole, int dim, const Communicator& group) {
    for (int rank = 0; rank < group.size(); ++rank) {
      const ShardRange range = part_of(whole.shape()[dim], group, rank);
      tensors.push_back(narrowed_operand(whole, dim, range.begin, range.length));
      counts.push_back(tensors.back().numel());
    }
    packed = empty({std::accumulate(counts.begin(), counts.end(), std::int64_t{0})}, whole.dtype());
  }
  /// Box `rank` within `packed`.
  Tensor at(std::size_t rank) const {
    const std::int64_t first = std::accumulate(
        counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank), std::int64_t{0});
    const Dims& shape = tensors[rank].shape();
    return alias(packed, shape, contiguous_strides(shape), first);
  }
};

void all_to_all_cpu(const Call& call, std::span<Tensor> out) {
  AttributeReader attributes = call.read();
  const int from = attributes.dim();
  const std::int64_t extent = attributes.integer();
  const int to = attributes.dim();
  Communicator& group = group_at(attributes);
  if (with_extent(call.in[0].shape(), from, extent).product() == 0) {
    return;
  }
  const Boxes sent(call.in[0], to, group);
  const Boxes received(out[0], from, group);
  for (std::size_t rank = 0; rank < sent.tensors.size(); ++rank) {
    copy_into(sent.at(rank), sent.tensors[rank]);
  }
  group.all_to_all(sent.packed.raw_data(), sent.counts, received.packed.raw_data(), received.counts,
                   out[0].dtype());
  for (std::size_t rank = 0; rank < received.tensors.size(); ++rank) {
    copy_into(received.tensors[rank], received.at(rank));
  }
}

const Op& all_to_all_op = register_op({
    .schema = "all_to_all(shard; from_dim: int, from_extent: int, to_dim: int, "
              "group: communicator)",
    .infer = all_to_all_infer,
    .cpu = all_to_all_cpu,
    .about = "Shards of one dim become shards of another; local tensors.",
});

}  // namespace

Tensor all_gather(const Tensor& shard, std::int64_t dim, std::int64_t extent, Communicator& group) {
  return call_one(
      all_gather_op, {shard},
      Attributes().add(wrap_dim(dim, shard.dims(), "all_gather")).add(extent).add_pointer(&group));
}

Tensor reduce_scatter(const Tensor& x, std::int64_t dim, ReduceOp op, Communicator& group) {
  return call_one(reduce_scatter_op, {x},
                  Attributes()
                      .add(wrap_dim(dim, x.dims(), "reduce_scatter"))
                      .add(static_cast<int>(op))
                      .add_pointer(&group));
}

Tensor all_reduce(const Tensor& x, ReduceOp op, Communicator& group) {
  return call_one(all_reduce_op, {x}, Attributes().add(static_cast<int>(op)).add_pointer(&group));
}

Tensor all_to_all(const Tensor& shard, std::int64_t from_dim, std::int64_t from_extent,
                  std::int64_t to_dim, Communicator& group) {
  return call_one(all_to_all_op, {shard},
                  Attributes()
                      .add(wrap_dim(from_dim, shard.dims(), "all_to_all"))
                      .add(from_extent)
                      .add(wrap_dim(to_dim, shard.dims(), "all_to_all"))
                      .add_pointer(&group));
}

Tensor broadcast(const Tensor& x, int root, Communicator& group) {
  return call_one(broadcast_op, {x}, Attributes().add(root).add_pointer(&group));
}

}  // namespace tessera::ops
