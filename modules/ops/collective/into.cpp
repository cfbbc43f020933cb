// Many tensors in one collective, shards of dim 0: all_gather_into, reduce_scatter_into. And memory
// that ranks share.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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

using collective::CallKind;
using collective::ReduceSegmentsOptions;
using collective::Segment;

struct AllGatherIntoArgs {
  GroupArgument group;
  std::int64_t identity;
};

struct ReduceScatterIntoArgs {
  ReduceOp op;
  GroupArgument group;
  std::int64_t identity;
};

/// Whether the shards of a reduction get sums in f32 of wholes in 16 bits, instead of rounded ones.
bool keeps_sums(const Tensor& whole, const Tensor& shard) {
  return shard.dtype() == DType::f32 &&
         (whole.dtype() == DType::bf16 || whole.dtype() == DType::f16);
}

/// Errors: a whole and this rank's shard that do not fit, or are not contiguous; in a reduction,
/// tensors of other types than the call's first pair.
void check_pair(const Call& call, const Tensor& whole, const Tensor& shard,
                const GroupArgument& group) {
  Dims expected = whole.shape();
  if (whole.dims() > 0) {
    expected[0] = part_of(expected[0], group, group.rank()).length;
  }
  const bool reduces = call.op.communicates == CallKind::reduce_scatter;
  const Tensor& first = call.in.front();
  const Tensor& second = call.in[call.in.size() / 2];
  const bool types_fit = reduces
                             ? whole.dtype() == second.dtype() && shard.dtype() == first.dtype() &&
                                   (shard.dtype() == whole.dtype() || keeps_sums(whole, shard))
                             : shard.dtype() == whole.dtype();
  if (whole.dims() == 0 || !(shard.shape() == expected) || !types_fit || !whole.is_contiguous() ||
      !shard.is_contiguous()) {
    refuse(call,
           fmt::format("rank {} of {} has a shard {}{} of a whole {}{} (expected contiguous "
                       "tensors of one type, the shard of {})",
                       group.rank(), group.size(), name_of(shard.dtype()), to_string(shard.shape()),
                       name_of(whole.dtype()), to_string(whole.shape()), to_string(expected)));
  }
}

/// Elements of a full piece of the whole.
std::int64_t chunk_of_whole(const Tensor& whole, const GroupArgument& group) {
  return with_extent(whole.shape(), 0, chunk_size(whole.shape()[0], group.size())).product();
}

/// Errors: the tensors that are to be completed by one wait are in several memories.
void check_one_memory(const Call& call, std::span<const Tensor> written) {
  for (const Tensor& x : written) {
    if (&x.storage() != &written[0].storage()) {
      refuse(call, fmt::format("the {} are in several memories (expected one, so that one wait "
                               "completes them)",
                               call.op.operands[0].name));
    }
  }
}

std::unique_ptr<IssuedCollective> start_all_gather_into(const Call& call, const Tensor&) {
  const auto [group, identity] = call.args<AllGatherIntoArgs>();
  const std::span wholes = call.in.first(call.in.size() / 2);
  const std::span shards = call.in.subspan(wholes.size());
  check_one_memory(call, wholes);
  std::vector<Segment> segments;
  segments.reserve(wholes.size());
  const bool one_type = std::ranges::all_of(
      wholes, [&](const Tensor& whole) { return whole.dtype() == wholes[0].dtype(); });
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    check_pair(call, wholes[i], shards[i], group);
    const auto unit = one_type ? 1 : static_cast<std::int64_t>(size_of(wholes[i].dtype()));
    segments.push_back({shards[i].numel() > 0 ? data_of(shards[i]) : nullptr, data_of(wholes[i]),
                        chunk_of_whole(wholes[i], group) * unit, wholes[i].numel() * unit});
  }
  collective::Communicator& communicator = group.communicator();
  return std::make_unique<IssuedCollective>(
      communicator.all_gather_async(segments, one_type ? wholes[0].dtype() : DType::u8,
                                    collective::PayloadIdentity{identity}),
      std::vector<Tensor>(), CallSources({shards.begin(), shards.end()}, communicator));
}

const Op& all_gather_into_op = register_op<AllGatherIntoArgs>({
    .schema = "all_gather_into(wholes..., shards...)",
    .cpu = issued_on_host<AllGatherIntoArgs, start_all_gather_into>,
    .any_device = issued_in_stream<AllGatherIntoArgs, WriteAccess::only>,
    .in_place = true,
    .keeps_versions = true,
    .communicates = CallKind::all_gather,
    .issues = true,
    .moves_elements = true,
    .about = "Issues the gather of whole tensors of one memory from the ranks' shards of dim 0; "
             "wait(wholes[0]) completes it; local tensors.",
});

std::unique_ptr<IssuedCollective> start_reduce_scatter_into(const Call& call, const Tensor& first) {
  const auto [op, group, identity] = call.args<ReduceScatterIntoArgs>();
  const std::span shards = call.in.first(call.in.size() / 2);
  const std::span wholes = call.in.subspan(shards.size());
  std::vector<Segment> segments;
  std::vector<Tensor> kept;
  segments.reserve(wholes.size());
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    check_pair(call, wholes[i], shards[i], group);
    segments.push_back({data_of(wholes[i]), data_of(shards[i]), chunk_of_whole(wholes[i], group),
                        wholes[i].numel()});
    if (&shards[i].storage() != &first.storage()) {
      kept.push_back(shards[i]);
    }
  }
  bump_further_versions(shards);
  ReduceSegmentsOptions options;
  options.reduce = op;
  options.destination_f32 = keeps_sums(wholes[0], shards[0]);
  options.terms = group.group->terms;
  options.moved = collective::PayloadIdentity{identity};
  collective::Communicator& communicator = group.whole().communicator();
  return std::make_unique<IssuedCollective>(
      communicator.reduce_scatter_async(segments, wholes[0].dtype(), options), std::move(kept),
      CallSources({wholes.begin(), wholes.end()}, communicator));
}

const Op& reduce_scatter_into_op = register_op<ReduceScatterIntoArgs>({
    .schema = "reduce_scatter_into(shards..., wholes...)",
    .cpu = issued_on_host<ReduceScatterIntoArgs, start_reduce_scatter_into>,
    .any_device = issued_in_stream<ReduceScatterIntoArgs, WriteAccess::only>,
    .in_place = true,
    .communicates = CallKind::reduce_scatter,
    .issues = true,
    .about = "Issues the reduction of whole tensors into this rank's shards of dim 0; "
             "wait(shards[0]) completes them; local tensors.",
});

std::vector<Tensor> joined(std::span<const Tensor> a, std::span<const Tensor> b) {
  std::vector<Tensor> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

}  // namespace

void all_gather_into(std::span<const Tensor> wholes, std::span<const Tensor> shards, Ranks group,
                     std::int64_t identity) {
  call(all_gather_into_op, joined(wholes, shards), AllGatherIntoArgs{group, identity});
}

void reduce_scatter_into(std::span<const Tensor> shards, std::span<const Tensor> wholes,
                         ReduceOp op, Ranks group, std::int64_t identity) {
  call(reduce_scatter_into_op, joined(shards, wholes), ReduceScatterIntoArgs{op, group, identity});
}

Tensor shared_empty(const Dims& shape, DType dtype, Ranks group, Device device) {
  if (!(device == cpu)) {
    return empty(shape, dtype, device);
  }
  const auto make = [&] {
    const auto bytes = static_cast<std::size_t>(
        checked_multiply(checked_product(shape, "shared_empty"),
                         static_cast<std::int64_t>(size_of(dtype)), "shared_empty"));
    const MemoryCategory category = current_memory_category();
    const auto booked = static_cast<std::int64_t>(bytes);
    const std::shared_ptr<collective::SharedBuffer> memory(
        new collective::SharedBuffer(
            static_cast<GroupArgument>(group).communicator().allocate(bytes)),
        [category, booked](collective::SharedBuffer* buffer) {
          delete buffer;
          account_memory(category, -booked);
        });
    account_memory(category, booked);
    return from_memory(memory->data(), shape, dtype, memory);
  };
  if (!modes_installed()) [[likely]] {
    return make();
  }
  Action action{.kind = ActionKind::create, .name = "shared_empty"};
  perform(action, [&] { action.out = Tensors{make()}; });
  return action.out[0];
}

}  // namespace tessera::ops
