module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.machines;

import tessera.base;
import tessera.ranks;
import tessera.calls;
import :bridge;
import :mirror;
import :transport;
import :wire;

namespace tessera::collective {
namespace {

// What a message may say of the places of its parts: more than any call has, without an overflow.
constexpr std::uint32_t most_bases = 1 << 20;
constexpr std::uint64_t largest_offset = std::uint64_t{1} << 56;

}  // namespace

PackedCall get_call(Reader& reader) {
  const auto packed = reader.get<PackedCall>();
  const Call call = unpack(packed);
  require(call.kind <= CallKind::receive && static_cast<int>(call.dtype) < dtype_count &&
              static_cast<int>(call.reduce) < reduce_op_count,
          "transport: a message has a call of no kind");
  return packed;
}

struct Mirror::Arrival {
  Topic topic = Topic::call;
  std::uint64_t sequence = 0;
  PackedCall call;
  Block block;
  std::uint64_t source = 0;  // offset of the data, or of the table of offsets
  int to = -1;               // of a message: a member
  int tag = 0;
  Sender* sender = nullptr;
  bool here = false;
};

/// Publications of one member of a group on another machine.
struct Mirror::Sender {
  GroupBlock* group = nullptr;
  Member* member = nullptr;
  int number = 0;             // in the group
  int rank = 0;               // in the world
  std::vector<Member*> here;  // members on this machine
  std::deque<std::shared_ptr<Arrival>> calls;
  std::deque<std::shared_ptr<Arrival>> results;
  std::map<int, std::deque<std::shared_ptr<Arrival>>> messages;  // by receiver
  std::deque<std::pair<std::uint64_t, Block>> in_use;            // until that many calls are done
  std::vector<std::pair<Message*, Block>> delivered;
  bool pending() const {
    return !calls.empty() || !results.empty() ||
           std::ranges::any_of(messages, [](const auto& m) { return !m.second.empty(); });
  }
};

Mirror::Mirror(std::shared_ptr<Region> region, const Machines& machines, int rank)
    : region_(std::move(region)),
      control_(*reinterpret_cast<Control*>(region_->base())),
      machines_(machines),
      rank_(rank),
      machine_(machines.of_rank[static_cast<std::size_t>(rank)]) {}

Mirror::~Mirror() = default;

void Mirror::lock() {
  Patience patience;
  control_.lock.lock(rank_, [&](int owner) {
    require(control_.failed.load() == 0, "transport: stopped, because of an error");
    const auto what = [&] {
      return fmt::format("transport: {} has the lock of the shared memory",
                         control_.describe_rank(owner));
    };
    if (!patience.look(what)) {
      fail(what());
    }
  });
}

Channel& Mirror::channel(GroupBlock& group, int from, int to) {
  if (Channel* const known = find_channel(*region_, group, from, to)) {
    return *known;
  }
  lock();
  Channel* const made = find_or_make_channel(*region_, group, from, to);
  control_.lock.unlock();
  if (made == nullptr) {
    fail({.thing = "transport", .wrong = "no room in shared memory for messages of a rank"});
  }
  return *made;
}

GroupBlock* Mirror::group(Reader& reader) {
  const std::size_t size = reader.count<std::uint32_t>(sizeof(std::int32_t));
  const auto ranks = reader.take(size * sizeof(std::int32_t));
  const std::string name = reader.text();
  std::string key(reinterpret_cast<const char*>(ranks.data()), ranks.size());
  key += '/' + name;
  GroupBlock*& known = groups_[key];
  if (known == nullptr) {
    std::vector<int> members(size);
    std::memcpy(members.data(), ranks.data(), ranks.size());
    const auto world = static_cast<int>(machines_.of_rank.size());
    require(size > 0 && std::ranges::all_of(members, [&](int r) { return r >= 0 && r < world; }),
            "transport: a message is of a group with ranks that are none");
    lock();
    known = find_or_make_group(*region_, members, name, false);
    control_.lock.unlock();
    if (known == nullptr) {
      fail({.thing = "transport", .wrong = "no room for a group of ranks in shared memory"});
    }
  }
  return known;
}

Mirror::Sender& Mirror::sender(GroupBlock* group, int member, int from) {
  std::unique_ptr<Sender>& known = senders_[{group, member}];
  if (known == nullptr) {
    known = std::make_unique<Sender>();
    known->group = group;
    known->number = member;
    known->rank = from;
    auto* members = reinterpret_cast<Member*>(region_->at(group->members));
    known->member = members + member;
    for (std::uint32_t m = 0; m < group->size; ++m) {
      if (machines_.of_rank[static_cast<std::size_t>(group->ranks()[m])] == machine_) {
        known->here.push_back(members + m);
      }
    }
  }
  return *known;
}

std::uint64_t Mirror::allocate(std::size_t bytes) {
  lock();
  const std::uint64_t offset = control_.extents.allocate(region_->base(), bytes, 4096);
  control_.lock.unlock();
  if (offset == 0) {
    fail({.thing = "transport",
          .wrong = "no room in shared memory for " + format_bytes(bytes) + " of another machine",
          .advice = "use fewer or smaller buffers, or a machine with more memory"});
  }
  return offset;
}

Mirror::Block Mirror::take(std::size_t bytes) {
  const std::size_t wanted = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
  const auto known =
      std::ranges::find_if(free_, [&](const Block& block) { return block.bytes == wanted; });
  if (known != free_.end()) {
    const Block block = *known;
    free_.erase(known);
    return block;
  }
  return {allocate(wanted), wanted};
}

void Mirror::give_back(const Block& block) {
  constexpr std::size_t kept = 32;
  free_.push_back(block);
  if (free_.size() <= kept) {
    return;
  }
  const Block oldest = free_.front();
  free_.erase(free_.begin());
  lock();
  control_.extents.release(region_->base(), oldest.offset);
  discard_pages(region_->at(oldest.offset), oldest.bytes, true);
  control_.lock.unlock();
}

std::vector<MessageTransport::Part> Mirror::place(Arrival& arrival, Reader& reader) {
  const bool table = reader.get<std::uint8_t>() != 0;
  const auto bases = reader.get<std::uint32_t>();
  require(bases <= most_bases, "transport: a message has too many bases");
  const std::size_t extras = reader.count<std::uint32_t>(sizeof(std::uint64_t));
  const auto extra = reader.take(extras * sizeof(std::uint64_t));
  std::vector<PartRange> ranges(reader.count<std::uint32_t>(sizeof(PartRange)));
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans(bases, {~std::uint64_t{0}, 0});
  for (PartRange& range : ranges) {
    range = reader.get<PartRange>();
    require(range.base < bases && range.bytes <= largest_part && range.begin <= largest_offset,
            "transport: a message has a part that is nowhere");
    auto& [begin, end] = spans[range.base];
    begin = std::min(begin, range.begin);
    end = std::max(end, range.begin + range.bytes);
  }
  const std::size_t head = table ? (bases + extras) * sizeof(std::uint64_t) : 0;
  std::uint64_t bytes = (head + 63) / 64 * 64;
  std::vector<std::uint64_t> places(bases, 0);  // of each base, relative to the block
  for (std::size_t b = 0; b < bases; ++b) {
    const auto [begin, end] = spans[b];
    if (end > begin) {
      places[b] = bytes - begin;
      bytes += (end - begin + 63) / 64 * 64;
    }
  }
  if (bytes == 0) {
    return {};
  }
  arrival.block = take(bytes);
  const std::uint64_t block = arrival.block.offset;
  arrival.source = table ? block : block + (places.empty() ? 0 : places[0]);
  if (table) {
    auto* entries = reinterpret_cast<std::uint64_t*>(region_->at(block));
    for (std::size_t b = 0; b < bases; ++b) {
      entries[b] = block + places[b];
    }
    if (extras != 0) {
      std::memcpy(entries + bases, extra.data(), extra.size());
    }
  }
  std::vector<MessageTransport::Part> parts;
  for (const PartRange& range : ranges) {
    std::byte* const to = region_->at(block + places[range.base] + range.begin);
    if (range.bytes < large_part) {
      const auto data = reader.take(range.bytes);
      std::memcpy(to, data.data(), data.size());
    } else {
      parts.push_back({to, range.bytes});
    }
  }
  return parts;
}

std::vector<MessageTransport::Part> Mirror::arrive(int from, Topic topic, Reader& reader,
                                                   std::uint64_t& token) {
  GroupBlock* const known = group(reader);
  const auto member = reader.get<std::int32_t>();
  const auto of_group = [&](std::int32_t m) {
    return m >= 0 && m < static_cast<std::int32_t>(known->size);
  };
  require(of_group(member) && known->ranks()[member] == from,
          "transport: a message is of a rank that has not sent it");
  const auto arrival = std::make_shared<Arrival>();
  arrival->topic = topic;
  arrival->sequence = reader.get<std::uint64_t>();
  arrival->call = get_call(reader);
  Sender& from_member = sender(known, member, from);
  arrival->sender = &from_member;
  if (topic == Topic::message) {
    arrival->to = reader.get<std::int32_t>();
    require(of_group(arrival->to), "transport: a message is for a member that is none");
    arrival->tag = reader.get<std::int32_t>();
    from_member.messages[arrival->to].push_back(arrival);
  } else {
    (topic == Topic::call ? from_member.calls : from_member.results).push_back(arrival);
  }
  auto parts = place(*arrival, reader);
  token = next_token_++;
  open_.emplace(token, arrival);
  return parts;
}

void Mirror::arrived(std::uint64_t token) {
  const auto at = open_.find(token);
  require(at != open_.end(), "transport: it reports a message that has not arrived");
  at->second->here = true;
  open_.erase(at);
}

void Mirror::ended(int rank) { ending_.push_back(rank); }

std::uint64_t Mirror::done_here(const Sender& sender) const {
  std::uint64_t minimum = ~std::uint64_t{0};
  for (const Member* member : sender.here) {
    minimum = std::min(minimum, member->done.load());
  }
  return minimum;
}

bool Mirror::apply_calls(Sender& sender) {
  bool any = false;
  while (!sender.calls.empty() && sender.calls.front()->here &&
         sender.calls.front()->sequence < done_here(sender) + Member::ring) {
    const Arrival& arrival = *sender.calls.front();
    Publication& publication = sender.member->publications[arrival.sequence % Member::ring];
    publication.call = arrival.call;
    publication.source = arrival.source;
    publication.time = steady_nanoseconds();
    if (arrival.block.bytes != 0) {
      sender.in_use.emplace_back(arrival.sequence + 1, arrival.block);
    }
    sender.member->published.raise(arrival.sequence + 1);
    sender.calls.pop_front();
    any = true;
  }
  return any;
}

bool Mirror::apply_results(Sender& sender) {
  bool any = false;
  while (!sender.results.empty() && sender.results.front()->here &&
         sender.results.front()->sequence < sender.member->published.load()) {
    const Arrival& arrival = *sender.results.front();
    sender.member->publications[arrival.sequence % Member::ring].result = arrival.source;
    if (arrival.block.bytes != 0) {
      sender.in_use.emplace_back(arrival.sequence + 1, arrival.block);
    }
    sender.member->reduced.raise(arrival.sequence + 1);
    sender.results.pop_front();
    any = true;
  }
  return any;
}

bool Mirror::apply_messages(Sender& sender) {
  bool any = false;
  for (auto& [to, waiting] : sender.messages) {
    if (waiting.empty() || !waiting.front()->here) {
      continue;
    }
    Channel& line = channel(*sender.group, sender.number, to);
    while (!waiting.empty() && waiting.front()->here) {
      const Arrival& arrival = *waiting.front();
      Message* const slot =
          free_slot(*region_, line, [&](std::size_t bytes) { return allocate(bytes); }).first;
      // Earlier content of the slot was read.
      std::erase_if(sender.delivered, [&](const auto& old) {
        if (old.first == slot && old.second.bytes != 0) {
          give_back(old.second);
        }
        return old.first == slot;
      });
      slot->tag = arrival.tag;
      slot->order = arrival.sequence;
      slot->call = arrival.call;
      slot->source = arrival.source;
      sender.delivered.emplace_back(slot, arrival.block);
      slot->full.store(1, std::memory_order_release);
      line.sent.raise(arrival.sequence + 1);
      waiting.pop_front();
      any = true;
    }
  }
  return any;
}

void Mirror::reclaim(Sender& sender) {
  if (sender.in_use.empty()) {
    return;
  }
  // Results of a call may come after later calls: not all are in order.
  const std::uint64_t done = done_here(sender);
  std::erase_if(sender.in_use, [&](const auto& used) {
    if (used.first <= done) {
      give_back(used.second);
    }
    return used.first <= done;
  });
}

bool Mirror::apply() {
  bool any = false;
  for (auto& [key, sender] : senders_) {
    reclaim(*sender);
    any |= apply_calls(*sender);
    any |= apply_results(*sender);
    any |= apply_messages(*sender);
  }
  std::erase_if(ending_, [&](int rank) {
    const bool pending = std::ranges::any_of(senders_, [&](const auto& known) {
      return known.second->rank == rank && known.second->pending();
    });
    if (!pending) {
      control_.ranks()[rank].ended.store(1, std::memory_order_release);
    }
    return !pending;
  });
  return any;
}

}  // namespace tessera::collective
