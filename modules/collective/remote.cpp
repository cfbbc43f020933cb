// What a rank sends to the machines of its group's other members.
module;
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>
module tessera.collective;

import tessera.base;
import :bridge;
import :call;
import :communicator;
import :control;
import :engine;
import :forms;
import :mirror;
import :point_to_point;
import :region;
import :state;

namespace tessera::collective {

/// The ranges of one message, in the order in which they are sent.
class Engine::Ranges {
 public:
  void add(std::size_t base, std::uint64_t begin, std::uint64_t bytes) {
    while (bytes > 0) {
      const std::uint64_t part = std::min<std::uint64_t>(bytes, largest_part);
      all.push_back({static_cast<std::uint32_t>(base), begin, part});
      begin += part;
      bytes -= part;
    }
  }
  std::vector<PartRange> all;
};

/// Writes the ranges into the head; small ones with their bytes, large ones become parts.
void Engine::put_ranges(Outgoing& message, Writer& writer, const std::vector<std::byte*>& bases,
                        const std::vector<std::uint64_t>& extra, bool table, const Ranges& ranges) {
  writer.put(static_cast<std::uint8_t>(table));
  writer.put(static_cast<std::uint32_t>(bases.size()));
  writer.put(static_cast<std::uint32_t>(extra.size()));
  writer.append(extra.data(), extra.size() * sizeof(std::uint64_t));
  writer.put(static_cast<std::uint32_t>(ranges.all.size()));
  for (const PartRange& range : ranges.all) {
    writer.put(range);
  }
  for (const PartRange& range : ranges.all) {
    std::byte* const data = bases[range.base] + range.begin;
    if (range.bytes < large_part) {
      writer.append(data, range.bytes);
    } else {
      message.parts.push_back({data, range.bytes});
    }
  }
}

void put_group(Writer& writer, GroupBlock& group) {
  writer.put(group.size);
  writer.append(group.ranks(), group.size * sizeof(std::int32_t));
  writer.put(std::string_view(group.name, group.name_bytes));
}

void Engine::find_machines() {
  if (state_.transport == Transport::fake) {
    return;
  }
  for (int m = 0; m < size_; ++m) {
    done_counters_.push_back(&members_[m].done);
    if (is_here(m)) {
      continue;
    }
    const int machine = state_.bridge->machines()
                            .of_rank[static_cast<std::size_t>(ranks_[static_cast<std::size_t>(m)])];
    auto at = std::ranges::find(remotes_, machine, &Remote::machine);
    if (at == remotes_.end()) {
      remotes_.push_back({.machine = machine, .departures = std::make_shared<Departures>()});
      at = remotes_.end() - 1;
    }
    at->members.push_back(m);
    done_counters_.back() = &at->departures->done;
  }
}

bool Engine::is_here(int member) const {
  return state_.bridge == nullptr ||
         state_.bridge->is_here(ranks_[static_cast<std::size_t>(member)]);
}

void Engine::send_call(const Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const std::span<const Segment> arrays = op.arrays();
  const bool table = op.form->list || op.form->counts;
  std::vector<std::byte*> bases;
  std::vector<std::uint64_t> extra;
  if (op.form->list) {
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      bases.push_back(state_.region->at(table_of(rank_, op)[a]));
    }
  } else if (op.form->counts) {
    const std::uint64_t* const own = table_of(rank_, op);
    for (int r = 0; r < size_; ++r) {
      bases.push_back(state_.region->at(own[r]));
    }
    extra.assign(own + size_, own + 2 * size_);
  } else {
    bases.push_back(state_.region->at(publication(rank_, op.sequence).source));
  }
  for (const Remote& remote : remotes_) {
    Ranges ranges;
    for (std::size_t a = 0; op.read != nullptr && a < arrays.size(); ++a) {
      Read last;
      for (const int m : remote.members) {
        const Read read = op.read(pair(op, arrays[a], m, rank_));
        if (read.from != last.from || read.count != last.count) {  // else the same for several
          const auto r = static_cast<std::size_t>(m);
          // With counts, each member has a base of its own.
          ranges.add(op.form->counts ? r : a,
                     op.form->counts ? 0 : static_cast<std::size_t>(read.from) * element,
                     static_cast<std::size_t>(read.count) * element);
          last = read;
        }
      }
    }
    remote.departures->expect(op.two_phase ? 2 : 1);
    send_ranges(op, remote, Topic::call, bases, extra, table, ranges);
  }
}

void Engine::send_result(const Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const std::span<const Segment> arrays = op.arrays();
  std::vector<std::byte*> bases;
  Ranges ranges;
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    // All of them read the same.
    const Read own = op.form->gather(pair(op, arrays[a], rank_, rank_));
    ranges.add(a, static_cast<std::size_t>(own.from) * element,
               static_cast<std::size_t>(own.count) * element);
    bases.push_back(op.form->list ? result_of(rank_, a, op) : op.result);
  }
  for (const Remote& remote : remotes_) {
    send_ranges(op, remote, Topic::result, bases, {}, op.form->list, ranges);
  }
}

void Engine::send_ranges(const Operation& op, const Remote& remote, Topic topic,
                         const std::vector<std::byte*>& bases,
                         const std::vector<std::uint64_t>& extra, bool table,
                         const Ranges& ranges) {
  Outgoing message{.to = state_.bridge->machines().gateway(state_.rank, remote.machine)};
  Writer writer;
  writer.put(topic);
  put_group(writer, *group_);
  writer.put(static_cast<std::int32_t>(rank_));
  writer.put(op.sequence);
  writer.put(pack(op.call));
  put_ranges(message, writer, bases, extra, table, ranges);
  message.head = std::move(writer.bytes);
  message.left = [departures = remote.departures, sequence = op.sequence] {
    departures->left(sequence);
  };
  state_.bridge->post(std::move(message));
}

void Engine::send_message(const Call& call, const void* source, int to, int tag,
                          std::uint64_t order) {
  const std::size_t bytes = static_cast<std::size_t>(call.count) * size_of(call.dtype);
  const int machine = state_.bridge->machines()
                          .of_rank[static_cast<std::size_t>(ranks_[static_cast<std::size_t>(to)])];
  // A send never waits: the message is copied.
  auto copy = std::make_shared<std::vector<std::byte>>(bytes);
  if (bytes != 0) {
    std::memcpy(copy->data(), source, bytes);
  }
  Ranges ranges;
  ranges.add(0, 0, bytes);
  Outgoing message{.to = state_.bridge->machines().gateway(state_.rank, machine), .owned = copy};
  Writer writer;
  writer.put(Topic::message);
  put_group(writer, *group_);
  writer.put(static_cast<std::int32_t>(rank_));
  writer.put(order);
  writer.put(pack(call));
  writer.put(static_cast<std::int32_t>(to));
  writer.put(static_cast<std::int32_t>(tag));
  put_ranges(message, writer, {copy->data()}, {}, false, ranges);
  message.head = std::move(writer.bytes);
  state_.bridge->post(std::move(message));
}

}  // namespace tessera::collective
