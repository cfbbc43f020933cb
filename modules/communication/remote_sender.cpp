// Messages of a rank to the machines of its group's other members.
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
module tessera.communication;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import tessera.machines;
import :communicator;
import :group_view;
import :operation;
import :remote_sender;
import :state;

namespace tessera::collective {

/// Body of a message: ranges of some bases, in the order in which they are sent.
class RemoteSender::Body {
 public:
  /// `table`: the reader finds the bases through a table, which `extra` follows.
  explicit Body(std::vector<std::byte*> bases, bool table = false,
                std::vector<std::uint64_t> extra = {})
      : bases_(std::move(bases)), table_(table), extra_(std::move(extra)) {}

  void add(std::size_t base, std::uint64_t begin, std::uint64_t bytes) {
    while (bytes > 0) {
      const std::uint64_t part = std::min<std::uint64_t>(bytes, largest_part);
      ranges_.push_back({static_cast<std::uint32_t>(base), begin, part});
      begin += part;
      bytes -= part;
    }
  }
  void clear() { ranges_.clear(); }

  /// Writes the ranges after the head; small ones with their bytes, large ones become parts.
  void put(OutgoingMessage& message, Writer writer) const {
    writer.put(static_cast<std::uint8_t>(table_));
    writer.put(static_cast<std::uint32_t>(bases_.size()));
    writer.put(static_cast<std::uint32_t>(extra_.size()));
    writer.append(extra_.data(), extra_.size() * sizeof(std::uint64_t));
    writer.put(static_cast<std::uint32_t>(ranges_.size()));
    for (const PartRange& range : ranges_) {
      writer.put(range);
    }
    for (const PartRange& range : ranges_) {
      std::byte* const data = bases_[range.base] + range.begin;
      if (range.bytes < large_part) {
        writer.append(data, range.bytes);
      } else {
        message.parts.push_back({data, range.bytes});
      }
    }
    message.head = std::move(writer.bytes);
  }

 private:
  std::vector<std::byte*> bases_;
  bool table_;
  std::vector<std::uint64_t> extra_;
  std::vector<PartRange> ranges_;
};

Writer RemoteSender::head(Topic topic, std::uint64_t sequence, const Call& call) const {
  Writer writer;
  writer.put(topic);
  put_group(writer, group_.group());
  writer.put(static_cast<std::int32_t>(group_.rank()));
  writer.put(sequence);
  writer.put(pack(call));
  return writer;
}

void RemoteSender::send_call(const Operation& op) const {
  const std::size_t element = size_of(op.call.dtype);
  const std::span<const Segment> arrays = op.arrays();
  const Region& region = group_.region();
  std::vector<std::byte*> bases;
  std::vector<std::uint64_t> extra;
  if (op.announced && !op.form->counts) {
    bases.push_back(region.at(0));  // nobody reads it
  } else if (op.form->list) {
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      bases.push_back(region.at(group_.table_of(group_.rank(), op)[a]));
    }
  } else if (op.form->counts) {
    const std::uint64_t* const own = group_.table_of(group_.rank(), op);
    for (int r = 0; r < group_.size(); ++r) {
      bases.push_back(region.at(own[r]));
    }
    extra.assign(own + group_.size(), own + 2 * group_.size());
  } else {
    bases.push_back(region.at(group_.own_publication(op.sequence).source));
  }
  const bool table = op.form->counts || (op.form->list && !op.announced);
  Body body(std::move(bases), table, std::move(extra));
  for (const GroupView::Machine& machine : group_.other_machines()) {
    body.clear();
    for (std::size_t a = 0; op.read != nullptr && a < arrays.size(); ++a) {
      Read last;
      for (const int m : machine.members) {
        const Read read = op.read_of(group_.read_by(op, arrays[a], m));
        if (read.from != last.from || read.count != last.count) {  // else the same for several
          const auto r = static_cast<std::size_t>(m);
          // With counts, each member has a base of its own.
          body.add(op.form->counts ? r : a,
                   op.form->counts ? 0 : static_cast<std::size_t>(read.from) * element,
                   static_cast<std::size_t>(read.count) * element);
          last = read;
        }
      }
    }
    machine.departures->expect(op.two_phase ? 2 : 1);
    send(op, machine, Topic::call, body);
  }
}

void RemoteSender::send_result(const Operation& op) const {
  const std::size_t element = size_of(op.call.dtype);
  const std::span<const Segment> arrays = op.arrays();
  std::vector<std::byte*> bases;
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    bases.push_back(op.form->list ? group_.result_of(group_.rank(), a, op) : op.result);
  }
  Body body(std::move(bases), op.form->list);
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    // All of them read the same.
    const Read own = op.form->gather(group_.reads_of(op, arrays[a], group_.rank()));
    body.add(a, static_cast<std::size_t>(own.from) * element,
             static_cast<std::size_t>(own.count) * element);
  }
  for (const GroupView::Machine& machine : group_.other_machines()) {
    send(op, machine, Topic::result, body);
  }
}

void RemoteSender::send(const Operation& op, const GroupView::Machine& machine, Topic topic,
                        const Body& body) const {
  Bridge& bridge = *group_.state().bridge;
  OutgoingMessage message{.to = bridge.machines().gateway(group_.state().rank, machine.number)};
  body.put(message, head(topic, op.sequence, op.call));
  message.left = [departures = machine.departures, sequence = op.sequence] {
    departures->left(sequence);
  };
  bridge.post(std::move(message));
}

void RemoteSender::send_message(const Call& call, const void* source, int to, int tag,
                                std::uint64_t order) const {
  Bridge& bridge = *group_.state().bridge;
  const std::size_t bytes =
      source == nullptr ? 0 : static_cast<std::size_t>(call.count) * size_of(call.dtype);
  const int machine = bridge.machines().of_rank[static_cast<std::size_t>(group_.global_rank(to))];
  // A send never waits: the message is copied.
  auto copy = std::make_shared<std::vector<std::byte>>(bytes);
  if (bytes != 0) {
    std::memcpy(copy->data(), source, bytes);
  }
  Body body({copy->data()});
  body.add(0, 0, bytes);
  OutgoingMessage message{.to = bridge.machines().gateway(group_.state().rank, machine),
                          .owned = copy};
  Writer writer = head(Topic::message, order, call);
  writer.put(static_cast<std::int32_t>(to));
  writer.put(static_cast<std::int32_t>(tag));
  body.put(message, std::move(writer));
  bridge.post(std::move(message));
}

}  // namespace tessera::collective
