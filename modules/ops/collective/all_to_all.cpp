// Shards of one dim become shards of another: boxes are packed for each rank, exchanged, unpacked.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
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

struct AllToAllArgs {
  std::int64_t from_dim;
  std::int64_t from_extent;
  std::int64_t to_dim;
  GroupArgument group;
};

using collective::CallKind;
using collective::Work;

void all_to_all_infer(const Call& call, ResultShapes& out) {
  const auto args = call.args<AllToAllArgs>();
  const int from = checked_part(call, args.from_dim, args.from_extent, args.group);
  const int to = checked_dim(call, args.to_dim);
  if (from == to) {
    refuse(call, fmt::format("from_dim and to_dim must differ (got {} for both)", from));
  }
  Dims shape = with_extent(call.in[0].shape(), from, args.from_extent);
  shape[to] = part_of(shape[to], args.group, args.group.rank()).length;
  out.push_back({shape, call.in[0].dtype()});
}

/// Packed boxes, one after another, one for each rank.
struct Boxes {
  std::vector<Tensor> tensors;  // views of the whole tensor
  std::vector<std::int64_t> counts;
  Tensor packed;

  Boxes(const Tensor& whole, int dim, const GroupArgument& group) {
    for (int rank = 0; rank < group.size(); ++rank) {
      const ShardRange range = part_of(whole.shape()[dim], group, rank);
      tensors.push_back(narrowed_operand(whole, dim, range.begin, range.length));
      counts.push_back(tensors.back().numel());
    }
    packed = empty({std::accumulate(counts.begin(), counts.end(), std::int64_t{0})}, whole.dtype(),
                   whole.device());
  }
  /// Box `rank` within `packed`.
  Tensor at(std::size_t rank) const { return at(rank, tensors[rank].shape()); }
  Tensor at(std::size_t rank, const Dims& shape) const {
    const std::int64_t first = std::accumulate(
        counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank), std::int64_t{0});
    return alias(packed, shape, contiguous_strides(shape), first);
  }
};

std::unique_ptr<IssuedCollective> start_all_to_all(const Call& call, const Tensor& out) {
  const auto args = call.args<AllToAllArgs>();
  const int from = checked_dim(call, args.from_dim);
  const int to = checked_dim(call, args.to_dim);
  if (with_extent(call.in[0].shape(), from, args.from_extent).product() == 0) {
    return std::make_unique<IssuedCollective>();
  }
  const Boxes sent(call.in[0], to, args.group);
  Boxes received(out, from, args.group);
  for (std::size_t rank = 0; rank < sent.tensors.size(); ++rank) {
    copy_into(sent.at(rank), sent.tensors[rank]);
  }
  Work work = args.group.communicator().all_to_all_async(
      data_of(sent.packed), sent.counts, data_of(received.packed), received.counts, out.dtype());
  received.tensors.clear();  // views of the result
  return std::make_unique<IssuedCollective>(
      std::move(work), std::vector{sent.packed},
      [from, group = args.group, received = std::move(received)](const Tensor& result) {
        for (int rank = 0; rank < group.size(); ++rank) {
          const ShardRange range = part_of(result.shape()[from], group, rank);
          const Tensor box = narrowed_operand(result, from, range.begin, range.length);
          copy_into(box, received.at(static_cast<std::size_t>(rank), box.shape()));
        }
      });
}

/// The box of each rank's part of `from_dim`.
std::int64_t all_to_all_received(const CollectiveContext& context) {
  const ResultShape& x = context.made[0];
  const auto from = static_cast<int>(context.args<AllToAllArgs>().from_dim);
  std::vector<std::int64_t> counts;
  for (int member = 0; member < context.size(); ++member) {
    const ShardRange part = chunk_of({0, x.shape[from]}, context.size(), member);
    counts.push_back(with_extent(x.shape, from, part.length).product());
  }
  return collective::received_bytes(x.dtype, counts, context.rank);
}

void all_to_all_cpu(const Call& call, std::span<Tensor> out) {
  start_all_to_all(call, out[0])->complete(out[0]);
}

const Op& all_to_all_op = register_op<AllToAllArgs>({
    .schema = "all_to_all(shard)",
    .infer = all_to_all_infer,
    .cpu = all_to_all_cpu,
    .any_device = in_stream<AllToAllArgs>,
    .communicates = CallKind::all_to_all,
    .received = all_to_all_received,
    .moves_elements = true,
    .about = "Shards along one dim are exchanged for shards along another dim; local tensors.",
});

const Op& all_to_all_async_op = register_op<AllToAllArgs>({
    .schema = "all_to_all_async(shard)",
    .infer = all_to_all_infer,
    .cpu = issued_on_host<AllToAllArgs, start_all_to_all>,
    .any_device = issued_in_stream<AllToAllArgs>,
    .communicates = CallKind::all_to_all,
    .received = all_to_all_received,
    .issues = true,
    .moves_elements = true,
    .about = "Issues an all_to_all; wait() completes its result; local tensors.",
});

Attributes all_to_all_attributes(const Tensor& shard, std::int64_t from_dim,
                                 std::int64_t from_extent, std::int64_t to_dim,
                                 GroupArgument group) {
  return AllToAllArgs{wrap_dim(from_dim, shard.dims(), "all_to_all"), from_extent,
                      wrap_dim(to_dim, shard.dims(), "all_to_all"), group};
}

}  // namespace

Tensor all_to_all(const Tensor& shard, std::int64_t from_dim, std::int64_t from_extent,
                  std::int64_t to_dim, Ranks group) {
  return call_one(all_to_all_op, {shard},
                  all_to_all_attributes(shard, from_dim, from_extent, to_dim, group));
}

PendingTensor all_to_all_async(const Tensor& shard, std::int64_t from_dim, std::int64_t from_extent,
                               std::int64_t to_dim, Ranks group) {
  return issue(all_to_all_async_op, {shard},
               all_to_all_attributes(shard, from_dim, from_extent, to_dim, group));
}

}  // namespace tessera::ops
