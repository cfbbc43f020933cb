// Boxes that travel by themselves: within a group of ranks by one all-to-all, between two meshes by
// a message for each.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
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
import :steps;

namespace tessera {
namespace {

using collective::Communicator;
using collective::Work;

/// Boxes one after another in one piece of memory, in the order of the group's ranks.
struct Packed {
  std::vector<std::int64_t> counts;
  Tensor memory;

  Packed(std::span<const Tensor> boxes, DType dtype) {
    counts.reserve(boxes.size());
    for (const Tensor& box : boxes) {
      counts.push_back(box ? box.numel() : 0);
    }
    memory = empty({std::accumulate(counts.begin(), counts.end(), std::int64_t{0})}, dtype);
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
/// and of two layouts and a rank the group follows.
struct Share {
  struct Piece {
    std::size_t peer;  // position in the group
    LocalPart box;
  };
  LocalPart held;
  LocalPart wanted;
  std::vector<LocalPart> kept;
  std::vector<Piece> sent;
  std::vector<Piece> received;
};

Share make_share(const Spec& from, const Spec& to, const std::vector<int>& ranks, int me) {
  Share share{
      local_part(from.shape, from.layout, me), local_part(to.shape, to.layout, me), {}, {}, {}};
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

const Op& exchange_op = register_op<ExchangeArgs>({
    .schema = "exchange(local)",
    .infer =
        [](const Call& call, ResultShapes& out) {
          out.push_back({local_shape(*call.args<ExchangeArgs>().to), call.in[0].dtype()});
        },
    .cpu =
        [](const Call& call, std::span<Tensor> out) {
          const auto [from, to, group] = call.args<ExchangeArgs>();
          operands::copy_elements(start_exchange(call.in[0], *from, *to, *group).wait(), out[0]);
        },
    .communicates = Communicates::all_to_all,
    .about = "Changes shards and replicas on several mesh axes at once: each rank receives the "
             "boxes that it does not have; local tensors.",
});

}  // namespace

Tensor box_of(const Tensor& local, const LocalPart& part, const LocalPart& box) {
  std::int64_t offset = local.offset();
  for (int d = 0; d < local.dims(); ++d) {
    offset += (box.offset[d] - part.offset[d]) * local.strides()[d];
  }
  return alias(local, box.shape, local.strides(), offset);
}

ops::PendingTensor start_exchange(const Tensor& local, const Spec& from, const Spec& to,
                                  Communicator& group) {
  const std::vector<int>& ranks = group.global_ranks();
  const int me = ranks[static_cast<std::size_t>(group.rank())];
  const Share& share = share_of(from, to, ranks, me);
  const Tensor out = empty(share.wanted.shape, from.dtype);
  if (from.shape.product() == 0) {
    return {out, {}, {}, {}};  // on every rank
  }
  for (const LocalPart& box : share.kept) {
    operands::copy_elements(box_of(local, share.held, box), box_of(out, share.wanted, box));
  }
  std::vector<Tensor> sent(ranks.size());
  for (const Share::Piece& piece : share.sent) {
    sent[piece.peer] = box_of(local, share.held, piece.box);
  }
  std::vector<Tensor> received(ranks.size());
  for (const Share::Piece& piece : share.received) {
    received[piece.peer] = box_of(out, share.wanted, piece.box);
  }
  const Packed away(sent, from.dtype);
  away.for_each(
      sent, [](const Tensor& box, const Tensor& place) { operands::copy_elements(box, place); });
  Packed here(received, from.dtype);
  Work work = group.all_to_all_async(away.memory.raw_data(), away.counts, here.memory.raw_data(),
                                     here.counts, from.dtype);
  return {out,
          std::move(work),
          {away.memory},
          [received = std::move(received), here = std::move(here)] {
            here.for_each(received, [](const Tensor& box, const Tensor& place) {
              operands::copy_elements(place, box);
            });
          }};
}

Tensor exchange(const Tensor& local, const Spec& from, const Spec& to, Communicator& group) {
  return call_one(exchange_op, {local}, ExchangeArgs{{&from}, {&to}, {&group}});
}

Tensor move_between(const Tensor& x, const Spec& from, const Spec& to, const char* where) {
  const Tensor local = x ? on_host(x) : x;  // messages are sent from the host's memory
  std::vector<int> ranks(from.layout.mesh().ranks().begin(), from.layout.mesh().ranks().end());
  ranks.insert(ranks.end(), to.layout.mesh().ranks().begin(), to.layout.mesh().ranks().end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  const int me = current_rank();
  const auto position = [&](int rank) {
    return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
  };
  Communicator& all = collective::World::current().communicator(ranks, "between meshes");
  const bool receives = to.layout.mesh().contains(me);
  const LocalPart held = local ? local_part(from.shape, from.layout, me) : LocalPart{};
  const LocalPart wanted = receives ? local_part(to.shape, to.layout, me) : LocalPart{};
  const Tensor out = receives ? empty(wanted.shape, from.dtype) : Tensor();

  const CommunicationTimer timer;
  std::vector<Tensor> buffers;
  std::vector<Work> works;
  std::vector<std::pair<Tensor, Tensor>> arriving;  // buffer, box
  std::int64_t bytes = 0;
  for (const Transfer& t : transfers(from.layout, to.layout, from.shape)) {
    if (t.source == me && t.destination == me) {
      operands::copy_elements(box_of(local, held, t.box), box_of(out, wanted, t.box));
    } else if (t.source == me) {
      buffers.push_back(operands::contiguous(box_of(local, held, t.box)));
      const Tensor& box = buffers.back();
      works.push_back(
          all.send_async(box.raw_data(), box.numel(), box.dtype(), position(t.destination)));
    } else if (t.destination == me) {
      const Tensor buffer = empty(t.box.shape, from.dtype);
      works.push_back(
          all.receive_async(buffer.raw_data(), buffer.numel(), buffer.dtype(), position(t.source)));
      arriving.emplace_back(buffer, box_of(out, wanted, t.box));
      bytes += buffer.numel() * static_cast<std::int64_t>(size_of(from.dtype));
    }
  }
  for (Work& work : works) {
    work.wait();
  }
  for (const auto& [buffer, box] : arriving) {
    operands::copy_elements(buffer, box);
  }
  if (communication_reported()) {
    record_communication({"send",
                          to_string(from.layout.mesh()) + " to " + to_string(to.layout.mesh()),
                          bytes, where, false, timer.seconds()});
  }
  return out && x ? ops::to_device(out, x.device()) : out;
}

}  // namespace tessera
