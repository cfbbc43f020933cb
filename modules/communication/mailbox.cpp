module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>
module tessera.communication;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import :communicator;
import :group_view;
import :mailbox;
import :remote_sender;
import :state;

namespace tessera::collective {

Mailbox::Mailbox(const GroupView& group, const RemoteSender& remote)
    : group_(group), remote_(remote) {}

Channel& Mailbox::channel(int from, int to) {
  const bool outgoing = from == group_.rank();
  std::vector<Channel*>& known = outgoing ? lines_to_ : lines_from_;
  known.resize(static_cast<std::size_t>(group_.size()));
  Channel*& line = known[static_cast<std::size_t>(outgoing ? to : from)];
  if (line == nullptr) {
    line = find_channel(group_.region(), group_.group(), from, to);
  }
  if (line == nullptr) {
    group_.state().lock();
    line = find_or_make_channel(group_.region(), group_.group(), from, to);
    group_.state().control->lock.unlock();
  }
  if (line == nullptr) {
    fail({.thing = "send",
          .wrong = "no room in shared memory for messages from one rank to another",
          .advice = "use fewer buffers, or raise `ulimit -v`"});
  }
  return *line;
}

MessageBlock* Mailbox::next_block(MessageBlock& block) const {
  const std::uint64_t offset = block.next.load(std::memory_order_acquire);
  return offset == 0 ? nullptr : reinterpret_cast<MessageBlock*>(group_.region().at(offset));
}

void Mailbox::send(const void* source, std::int64_t count, DType dtype, int to, int tag) {
  WorldState& state = group_.state();
  const Call call{CallKind::send, dtype, ReduceOp::sum, to, count, 0};
  Channel& line = channel(group_.rank(), to);
  const std::uint64_t order = line.sent.load();
  RecordedCall& record = state.record(group_.group_offset(), order, pack(call));
  if (!group_.is_here(to)) {
    remote_.send_message(call, source, to, tag, order);
    line.sent.raise(order + 1);  // nobody reads it here: it counts
    record.done.store(1, std::memory_order_relaxed);
    return;
  }
  const auto [slot, index] =
      free_slot(group_.region(), line, [&](std::size_t size) { return state.allocate(size); });
  slot_memory_.resize(static_cast<std::size_t>(group_.size()));
  std::vector<SlotMemory>& memories = slot_memory_[static_cast<std::size_t>(to)];
  memories.resize(std::max(memories.size(), index + 1));
  SlotMemory& memory = memories[index];
  const std::size_t bytes =
      source == nullptr ? 0 : static_cast<std::size_t>(count) * size_of(dtype);
  if (memory.bytes < bytes) {
    if (memory.offset != 0) {
      state.release(memory.offset);
    }
    memory.bytes = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
    memory.offset = state.allocate(memory.bytes);
  }
  if (bytes != 0) {
    std::memcpy(group_.region().at(memory.offset), source, bytes);
  }
  slot->tag = tag;
  slot->order = order;
  slot->call = pack(call);
  slot->source = memory.offset;
  slot->full.store(1, std::memory_order_release);
  line.sent.raise(order + 1);
  record.done.store(1, std::memory_order_relaxed);
}

template <class Fits>
Message* Mailbox::find(Channel& line, std::uint64_t sent, const Fits& fits) const {
  Message* found = nullptr;
  for (MessageBlock* part = &line.first; part != nullptr; part = next_block(*part)) {
    for (Message& message : part->messages) {
      if (message.full.load(std::memory_order_acquire) == 1 && message.order < sent &&
          fits(message) && (found == nullptr || message.order < found->order)) {
        found = &message;
      }
    }
  }
  return found;
}

void Mailbox::check_fits(const Call& wanted, const Call& theirs, int tag) const {
  if (theirs.dtype != wanted.dtype || theirs.count != wanted.count) {
    group_.state().fail_published(fmt::format(
        "receive: rank {} expects {} of {} from rank {} (tag {}), which sent {} of {} (group "
        "{})",
        group_.state().rank, wanted.count, tessera::name_of(wanted.dtype),
        group_.global_rank(wanted.root), tag, theirs.count, tessera::name_of(theirs.dtype),
        describe_group(group_.group())));
  }
}

void Mailbox::take(const Receive& receive, Message& message) const {
  check_fits(receive.call, unpack(message.call), receive.tag);
  const std::size_t bytes =
      static_cast<std::size_t>(receive.call.count) * size_of(receive.call.dtype);
  if (bytes != 0) {
    std::memcpy(receive.destination, group_.region().at(message.source), bytes);
  }
  message.full.store(0, std::memory_order_release);
}

bool Mailbox::advance(const Receive& receive, bool block) {
  Channel& line = channel(receive.from, group_.rank());
  while (true) {
    // The first message is found among those up to here; later ones may come into slots that were
    // looked at already, before others in slots that were not.
    const std::uint64_t sent = line.sent.load();
    if (Message* const message =
            find(line, sent, [&](const Message& m) { return m.tag == receive.tag; })) {
      take(receive, *message);
      return true;
    }
    if (!block) {
      return false;
    }
    group_.wait_for_message(line.sent, sent + 1, receive.call, receive.ticket - first_ticket,
                            receive.from);
  }
}

Mailbox::MessageHeader Mailbox::next(const Call& wanted) {
  const int from = wanted.root;
  Channel& line = channel(from, group_.rank());
  taken_from_.resize(static_cast<std::size_t>(group_.size()));
  std::uint64_t& taken = taken_from_[static_cast<std::size_t>(from)];
  while (true) {
    const std::uint64_t sent = line.sent.load();
    if (Message* const message =
            find(line, sent, [&](const Message& m) { return m.order == taken; })) {
      const MessageHeader header{unpack(message->call), message->tag};
      message->full.store(0, std::memory_order_release);
      ++taken;
      return header;
    }
    group_.wait_for_message(line.sent, taken + 1, wanted, taken, from);
  }
}

std::uint64_t Mailbox::receive(void* destination, std::int64_t count, DType dtype, int from,
                               int tag) {
  const Call call{CallKind::receive, dtype, ReduceOp::sum, from, count, 0};
  group_.state().record(group_.group_offset(), next_ticket_ - first_ticket, pack(call));
  receives_.push_back({next_ticket_, static_cast<std::byte*>(destination), call, from, tag});
  return next_ticket_++;
}

void Mailbox::wait(std::uint64_t ticket) {
  // Earlier receives with the same sender and tag complete first.
  const auto wanted = std::find_if(receives_.begin(), receives_.end(),
                                   [&](const Receive& r) { return r.ticket == ticket; });
  if (wanted == receives_.end()) {
    return;
  }
  const Receive last = *wanted;
  for (auto at = receives_.begin(); at != receives_.end() && at->ticket <= ticket;) {
    if (at->from == last.from && at->tag == last.tag) {
      advance(*at, true);
      at = receives_.erase(at);
    } else {
      ++at;
    }
  }
}

bool Mailbox::done(std::uint64_t ticket) const {
  return std::none_of(receives_.begin(), receives_.end(),
                      [&](const Receive& r) { return r.ticket == ticket; });
}

bool Mailbox::progress() {
  for (auto at = receives_.begin(); at != receives_.end();) {
    const bool blocked = std::any_of(receives_.begin(), at, [&](const Receive& earlier) {
      return earlier.from == at->from && earlier.tag == at->tag;
    });
    if (!blocked && advance(*at, false)) {
      at = receives_.erase(at);
    } else {
      ++at;
    }
  }
  return receives_.empty();
}

}  // namespace tessera::collective
