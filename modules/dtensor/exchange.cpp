// Boxes that travel by themselves: within a group of ranks by one all-to-all, between two meshes by
// a message for each.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <tessera/recent_map.hpp>
#include <utility>
#include <vector>
module tessera.dtensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import :redistribution_steps;

namespace tessera {
namespace {

using collective::Communicator;
using collective::Work;

/// Boxes one after another in one piece of memory, in the order of the group's ranks.
struct PackedBoxes {
  std::vector<std::int64_t> counts;
  Tensor memory;

  PackedBoxes(std::span<const Tensor> boxes, DType dtype, Device device) {
    counts.reserve(boxes.size());
    for (const Tensor& box : boxes) {
      counts.push_back(box ? box.numel() : 0);
    }
    memory = empty({std::accumulate(counts.begin(), counts.end(), std::int64_t{0})}, dtype, device);
  }

  /// Calls f(box, its place in the memory) for all that are there.
  template <class F>
  void for_each(std::span<const Tensor> boxes, F f) const {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      if (boxes[i]) {
        f(boxes[i], alias(memory, boxes[i].shape(), contiguous_strides(boxes[i].shape()), at));
      }
      at += counts[i];
    }
  }
};

/// This rank's share of an exchange: which boxes it keeps, sends and receives. Specs are interned,
/// and of two layouts and a rank the group follows. It holds the Specs of its key.
struct Share {
  struct Piece {
    std::size_t peer;  // position in the group
    LocalPart box;
  };
  SpecHandle from;
  SpecHandle to;
  LocalPart held;
  LocalPart wanted;
  std::vector<LocalPart> kept;
  std::vector<Piece> sent;
  std::vector<Piece> received;
};

Share make_share(const Spec& from, const Spec& to, const std::vector<int>& ranks, int me) {
  Share share{.from = from.handle(),
              .to = to.handle(),
              .held = local_part(from.shape, from.layout, me),
              .wanted = local_part(to.shape, to.layout, me),
              .kept = {},
              .sent = {},
              .received = {}};
  const auto position = [&](int rank) {
    return static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  };
  for (const Transfer& t : transfers(from.layout, ranks, to.layout, ranks, from.shape)) {
    if (t.source == me && t.destination == me) {
      share.kept.push_back(t.box);
    } else if (t.source == me) {
      share.sent.push_back({position(t.destination), t.box});
    } else if (t.destination == me) {
      share.received.push_back({position(t.source), t.box});
    }
  }
  return share;
}

struct ShareKey {
  const Spec* from;
  const Spec* to;
  int rank;
  friend bool operator==(const ShareKey&, const ShareKey&) = default;
};

struct ShareHash {
  std::size_t operator()(const ShareKey& key) const {
    return hash_combine(hash_combine(reinterpret_cast<std::uint64_t>(key.from),
                                     reinterpret_cast<std::uint64_t>(key.to)),
                        static_cast<std::uint64_t>(key.rank));
  }
};

/// Found once for each pair of layouts: every pair of the group's ranks has to be looked at.
const Share& share_of(const Spec& from, const Spec& to, const std::vector<int>& ranks, int me) {
  thread_local RecentMap<ShareKey, Share, ShareHash> shares(1 << 10);
  const ShareKey key{&from, &to, me};
  if (const Share* found = shares.find(key)) {
    return *found;
  }
  return shares.insert(key, make_share(from, to, ranks, me));
}

struct ExchangeArgs {
  SpecArgument from;
  SpecArgument to;
  ops::GroupArgument group;
};

/// Which boxes travel: views of the rank's part, at the places of the group's ranks.
std::vector<Tensor> boxes_of(const Tensor& local, const LocalPart& part,
                             const std::vector<Share::Piece>& pieces, int ranks) {
  std::vector<Tensor> boxes(static_cast<std::size_t>(ranks));
  for (const Share::Piece& piece : pieces) {
    boxes[piece.peer] = box_of(local, part, piece.box);
  }
  return boxes;
}

const Share& share_of(const ExchangeArgs& args) {
  return share_of(*args.from, *args.to, args.group.group->ranks, current_rank());
}

/// Sends this rank's boxes to the ranks of the group that need them, and receives its own.
std::unique_ptr<ops::IssuedCollective> start_exchange(const Call& call, const Tensor& out) {
  const auto args = call.args<ExchangeArgs>();
  const Tensor& local = call.in[0];
  const DType dtype = args.from->dtype;
  if (args.from->shape.product() == 0) {
    return std::make_unique<ops::IssuedCollective>();  // on every rank
  }
  const Share& share = share_of(args);
  for (const LocalPart& box : share.kept) {
    operands::copy_elements(box_of(local, share.held, box), box_of(out, share.wanted, box));
  }
  const std::vector<Tensor> sent = boxes_of(local, share.held, share.sent, args.group.size());
  const PackedBoxes away(sent, dtype, out.device());
  away.for_each(
      sent, [](const Tensor& box, const Tensor& place) { operands::copy_elements(box, place); });
  PackedBoxes here(boxes_of(out, share.wanted, share.received, args.group.size()), dtype,
                   out.device());
  Work work = args.group.communicator().all_to_all_async(
      ops::data_of(away.memory), away.counts, ops::data_of(here.memory), here.counts, dtype);
  return std::make_unique<ops::IssuedCollective>(
      std::move(work), std::vector{away.memory},
      [args, here = std::move(here)](const Tensor& result) {
        const Share& own = share_of(args);
        here.for_each(
            boxes_of(result, own.wanted, own.received, args.group.size()),
            [](const Tensor& box, const Tensor& place) { operands::copy_elements(place, box); });
      });
}

/// Bytes that a rank receives in a change of layout within a mesh, or between two.
std::int64_t received_boxes(const ExchangeArgs& args, int rank) {
  const Spec& from = *args.from;
  const Spec& to = *args.to;
  const std::vector<int>& ranks = args.group.group->ranks;
  const std::int64_t elements =
      received_elements(from.layout.mesh() == to.layout.mesh()
                            ? transfers(from.layout, ranks, to.layout, ranks, from.shape)
                            : transfers(from.layout, to.layout, from.shape),
                        rank);
  return elements * static_cast<std::int64_t>(size_of(from.dtype));
}

std::int64_t exchange_received(const CollectiveContext& context) {
  return received_boxes(context.args<ExchangeArgs>(),
                        context.ranks[static_cast<std::size_t>(context.rank)]);
}

void exchange_infer(const Call& call, ResultShapes& out) {
  out.push_back({local_shape(*call.args<ExchangeArgs>().to), call.in[0].dtype()});
}

const Op& exchange_op = register_op<ExchangeArgs>({
    .schema = "exchange(local)",
    .infer = exchange_infer,
    .cpu = [](const Call& call,
              std::span<Tensor> out) { start_exchange(call, out[0])->complete(out[0]); },
    .any_device = ops::in_stream<ExchangeArgs>,
    .communicates = collective::CallKind::all_to_all,
    .received = exchange_received,
    .moves_elements = true,
    .about = "Changes shards and replicas on several mesh axes at once: each rank receives the "
             "boxes that it does not have; local tensors.",
});

const Op& exchange_async_op = register_op<ExchangeArgs>({
    .schema = "exchange_async(local)",
    .infer = exchange_infer,
    .cpu = ops::issued_on_host<ExchangeArgs, start_exchange>,
    .any_device = ops::issued_in_stream<ExchangeArgs>,
    .communicates = collective::CallKind::all_to_all,
    .received = exchange_received,
    .issues = true,
    .moves_elements = true,
    .about = "Issues an exchange; wait() completes its result; local tensors.",
});

}  // namespace

Tensor box_of(const Tensor& local, const LocalPart& part, const LocalPart& box) {
  std::int64_t offset = local.offset();
  for (int d = 0; d < local.dims(); ++d) {
    offset += (box.offset[d] - part.offset[d]) * local.strides()[d];
  }
  return alias(local, box.shape, local.strides(), offset);
}

Tensor exchange(const Tensor& local, const Spec& from, const Spec& to, ops::GroupArgument group) {
  return call_one(exchange_op, {local}, ExchangeArgs{{from.handle()}, {to.handle()}, group});
}

ops::PendingTensor exchange_async(const Tensor& local, const Spec& from, const Spec& to,
                                  ops::GroupArgument group) {
  return ops::issue(exchange_async_op, {local},
                    ExchangeArgs{{from.handle()}, {to.handle()}, group});
}

namespace {

/// The ranks of two meshes in ascending order, as the group of their messages.
ops::GroupArgument ranks_of_both(const DeviceMesh& a, const DeviceMesh& b) {
  std::vector<int> ranks(a.ranks().begin(), a.ranks().end());
  ranks.insert(ranks.end(), b.ranks().begin(), b.ranks().end());
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ops::GroupArgument::of(ranks, "between meshes");
}

/// A rank that receives nothing has an empty result.
void messages_infer(const Call& call, ResultShapes& out) {
  const Spec& to = *call.args<ExchangeArgs>().to;
  out.push_back({to.layout.mesh().contains(current_rank()) ? local_shape(to) : Dims{0}, to.dtype});
}

void send_boxes(const Call& call, std::span<Tensor> out) {
  const auto args = call.args<ExchangeArgs>();
  const Spec& from = *args.from;
  const Spec& to = *args.to;
  const std::vector<int>& ranks = args.group.group->ranks;
  Communicator& all = args.group.communicator();
  const int me = current_rank();
  const auto position = [&](int rank) {
    return static_cast<int>(std::ranges::lower_bound(ranks, rank) - ranks.begin());
  };
  const Tensor& local = call.in[0];
  const LocalPart held = local ? local_part(from.shape, from.layout, me) : LocalPart{};
  const LocalPart wanted =
      to.layout.mesh().contains(me) ? local_part(to.shape, to.layout, me) : LocalPart{};
  std::vector<Tensor> buffers;
  std::vector<Work> works;
  std::vector<std::pair<Tensor, Tensor>> arriving;  // buffer, box
  for (const Transfer& t : transfers(from.layout, to.layout, from.shape)) {
    if (t.source == me && t.destination == me) {
      operands::copy_elements(box_of(local, held, t.box), box_of(out[0], wanted, t.box));
    } else if (t.source == me) {
      buffers.push_back(operands::contiguous(box_of(local, held, t.box)));
      const Tensor& box = buffers.back();
      works.push_back(
          all.send_async(box.raw_data(), box.numel(), box.dtype(), position(t.destination)));
    } else if (t.destination == me) {
      const Tensor buffer = empty(t.box.shape, from.dtype);
      works.push_back(
          all.receive_async(buffer.raw_data(), buffer.numel(), buffer.dtype(), position(t.source)));
      arriving.emplace_back(buffer, box_of(out[0], wanted, t.box));
    }
  }
  for (Work& work : works) {
    work.wait();
  }
  for (const auto& [buffer, box] : arriving) {
    operands::copy_elements(buffer, box);
  }
}

const Op& exchange_messages_op = register_op<ExchangeArgs>({
    .schema = "exchange_messages(local?)",
    .infer = messages_infer,
    .cpu = send_boxes,
    .communicates = collective::CallKind::all_to_all,
    .received = exchange_received,
    .moves_elements = true,
    .about = "Between two meshes: a message for each box that a rank of the other mesh needs; the "
             "group has the ranks of both; local tensors.",
});

}  // namespace

Tensor move_between(const Tensor& x, const Spec& from, const Spec& to, const char* where) {
  const Tensor local = x ? on_host(x) : x;  // messages are sent from the host's memory
  const CommunicationTimer timer;
  const ExchangeArgs args{
      {from.handle()}, {to.handle()}, ranks_of_both(from.layout.mesh(), to.layout.mesh())};
  const Tensor out = call_one(exchange_messages_op, {local}, args);
  if (communication_reported()) {
    record_communication({"send",
                          to_string(from.layout.mesh()) + " to " + to_string(to.layout.mesh()),
                          received_boxes(args, current_rank()), where, false, timer.seconds()});
  }
  if (!to.layout.mesh().contains(current_rank())) {
    return {};
  }
  return x ? ops::to_device(out, x.device()) : out;
}

}  // namespace tessera
