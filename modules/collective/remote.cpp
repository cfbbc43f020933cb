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
import :mirror;
import :point_to_point;
import :region;
import :state;

namespace tessera::collective {
namespace {

/// The ranges of one message, in the order in which they are sent.
class Ranges {
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
void put_ranges(Outgoing& message, Writer& writer, const std::vector<std::byte*>& bases,
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

}  // namespace

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
  const Publication& own = publication(rank_, op.sequence);
  const std::size_t element = size_of(op.call.dtype);
  const std::size_t row = static_cast<std::size_t>(op.call.count) * element;
  const bool segments = !op.segments.empty();
  const bool counts = op.call.kind == CallKind::all_to_all_counts;
  std::vector<std::byte*> bases;
  std::vector<std::uint64_t> extra;
  if (segments || counts) {
    const std::uint64_t* table = table_of(rank_, op);
    const std::size_t entries = segments ? op.segments.size() : static_cast<std::size_t>(size_);
    for (std::size_t i = 0; i < entries; ++i) {
      bases.push_back(state_.region->at(table[i]));
    }
    if (counts) {
      extra.assign(table + size_, table + 2 * size_);
    }
  } else {
    bases.push_back(state_.region->at(own.source));
  }
  for (const Remote& remote : remotes_) {
    Ranges ranges;
    const bool root_there = std::ranges::find(remote.members, op.call.root) != remote.members.end();
    const auto rows = [&] {
      for (const int m : remote.members) {
        ranges.add(0, row * static_cast<std::size_t>(m), row);
      }
    };
    const auto piece = [&](std::size_t base, std::int64_t count, int m) {
      const std::int64_t begin = piece_begin(count, element, size_, m);
      const std::int64_t end = piece_begin(count, element, size_, m + 1);
      ranges.add(base, static_cast<std::size_t>(begin) * element,
                 static_cast<std::size_t>(end - begin) * element);
    };
    switch (op.call.kind) {
      case CallKind::all_reduce:
        if (!op.two_phase) {
          ranges.add(0, 0, row);
          break;
        }
        for (const int m : remote.members) {
          piece(0, op.call.count, m);
        }
        break;
      case CallKind::all_gather:
        ranges.add(0, 0, row);
        break;
      case CallKind::gather:
      case CallKind::reduce:
        ranges.add(0, 0, root_there ? row : 0);
        break;
      case CallKind::reduce_scatter:
      case CallKind::all_to_all:
        rows();
        break;
      case CallKind::broadcast:
        ranges.add(0, 0, rank_ == op.call.root ? row : 0);
        break;
      case CallKind::scatter:
        if (rank_ == op.call.root) {
          rows();
        }
        break;
      case CallKind::all_gather_segments:
        for (std::size_t s = 0; s < op.segments.size(); ++s) {
          ranges.add(s, 0,
                     static_cast<std::size_t>(piece_elements(op.segments[s], rank_)) * element);
        }
        break;
      case CallKind::reduce_scatter_segments:
        for (std::size_t s = 0; s < op.segments.size(); ++s) {
          for (const int m : remote.members) {
            ranges.add(s, static_cast<std::size_t>(op.segments[s].chunk * m) * element,
                       static_cast<std::size_t>(piece_elements(op.segments[s], m)) * element);
          }
        }
        break;
      case CallKind::all_reduce_segments:
        for (std::size_t s = 0; s < op.segments.size(); ++s) {
          for (const int m : remote.members) {
            piece(s, op.segments[s].total, m);
          }
        }
        break;
      case CallKind::all_to_all_counts:
        for (const int m : remote.members) {
          const auto r = static_cast<std::size_t>(m);
          ranges.add(r, 0, static_cast<std::size_t>(op.send_counts[r]) * element);
        }
        break;
      case CallKind::barrier:
      case CallKind::send:
      case CallKind::receive:
        break;
    }
    remote.departures->expect(op.two_phase ? 2 : 1);
    Outgoing message{.to = state_.bridge->machines().gateway(state_.rank, remote.machine)};
    Writer writer;
    writer.put(Topic::call);
    put_group(writer, *group_);
    writer.put(static_cast<std::int32_t>(rank_));
    writer.put(op.sequence);
    writer.put(pack(op.call));
    put_ranges(message, writer, bases, extra, segments || counts, ranges);
    message.head = std::move(writer.bytes);
    message.left = [departures = remote.departures, sequence = op.sequence] {
      departures->left(sequence);
    };
    state_.bridge->post(std::move(message));
  }
}

void Engine::send_result(const Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const bool segments = op.call.kind == CallKind::all_reduce_segments;
  std::vector<std::byte*> bases;
  Ranges ranges;
  const auto add = [&](std::byte* base, std::int64_t count) {
    const std::int64_t begin = piece_begin(count, element, size_, rank_);
    const std::int64_t end = piece_begin(count, element, size_, rank_ + 1);
    ranges.add(bases.size(), static_cast<std::size_t>(begin) * element,
               static_cast<std::size_t>(end - begin) * element);
    bases.push_back(base);
  };
  if (segments) {
    const std::uint64_t* table = table_of(rank_, op);
    for (std::size_t s = 0; s < op.segments.size(); ++s) {
      add(state_.region->at(table[s]), op.segments[s].total);
    }
  } else {
    add(op.result, op.call.count);
  }
  for (const Remote& remote : remotes_) {
    Outgoing message{.to = state_.bridge->machines().gateway(state_.rank, remote.machine)};
    Writer writer;
    writer.put(Topic::result);
    put_group(writer, *group_);
    writer.put(static_cast<std::int32_t>(rank_));
    writer.put(op.sequence);
    writer.put(pack(op.call));
    put_ranges(message, writer, bases, {}, segments, ranges);
    message.head = std::move(writer.bytes);
    message.left = [departures = remote.departures, sequence = op.sequence] {
      departures->left(sequence);
    };
    state_.bridge->post(std::move(message));
  }
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
