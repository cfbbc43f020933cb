module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.collective;

import tessera.base;
import :call;
import :communicator;
import :control;
import :engine;
import :point_to_point;
import :region;
import :state;
import :work;

namespace tessera::collective {

Channel* find_channel(Region& region, GroupBlock& group, int from, int to) {
  const auto* members = reinterpret_cast<const Member*>(region.at(group.members));
  std::uint64_t at = members[to].channels.load(std::memory_order_acquire);
  while (at != 0) {
    auto* const line = reinterpret_cast<Channel*>(region.at(at));
    if (line->from == from) {
      return line;
    }
    at = line->next;
  }
  return nullptr;
}

Channel* find_or_make_channel(Region& region, GroupBlock& group, int from, int to) {
  if (Channel* const known = find_channel(region, group, from, to)) {
    return known;
  }
  auto* const control = reinterpret_cast<Control*>(region.base());
  const std::uint64_t offset =
      control->extents.allocate(region.base(), (sizeof(Channel) + 4095) & ~std::size_t{4095}, 4096);
  if (offset == 0) {
    return nullptr;
  }
  Member& receiver = reinterpret_cast<Member*>(region.at(group.members))[to];
  auto* const line = new (region.at(offset)) Channel;
  line->from = from;
  line->next = receiver.channels.load(std::memory_order_relaxed);
  receiver.channels.store(offset, std::memory_order_release);
  return line;
}

Channel& Engine::channel(int from, int to) {
  const bool outgoing = from == rank_;
  std::vector<Channel*>& known = outgoing ? lines_to_ : lines_from_;
  known.resize(static_cast<std::size_t>(size_));
  Channel*& line = known[static_cast<std::size_t>(outgoing ? to : from)];
  if (line == nullptr) {
    line = find_channel(*state_.region, *group_, from, to);
  }
  if (line == nullptr) {
    state_.lock();
    line = find_or_make_channel(*state_.region, *group_, from, to);
    state_.control->lock.unlock();
  }
  if (line == nullptr) {
    fail({.thing = "send",
          .wrong = "no room in shared memory for messages from one rank to another",
          .advice = "use fewer buffers, or raise `ulimit -v`"});
  }
  return *line;
}

std::pair<Message*, std::size_t> free_slot(
    Region& region, Channel& line, const std::function<std::uint64_t(std::size_t)>& allocate) {
  std::size_t index = 0;
  for (MessageBlock* block = &line.first;;
       block = reinterpret_cast<MessageBlock*>(region.at(block->next.load()))) {
    for (Message& message : block->messages) {
      if (message.full.load(std::memory_order_acquire) == 0) {
        return {&message, index};
      }
      ++index;
    }
    if (block->next.load(std::memory_order_relaxed) == 0) {
      const std::uint64_t offset = allocate(sizeof(MessageBlock));
      new (region.at(offset)) MessageBlock;
      block->next.store(offset, std::memory_order_release);
    }
  }
}

MessageBlock* Engine::next_block(MessageBlock& block) const {
  const std::uint64_t offset = block.next.load(std::memory_order_acquire);
  return offset == 0 ? nullptr : reinterpret_cast<MessageBlock*>(state_.region->at(offset));
}

void Engine::send_now(const void* source, std::int64_t count, DType dtype, int to, int tag) {
  const std::lock_guard guard(mutex_);
  state_.throw_if_failed();
  const Call call{CallKind::send, dtype, ReduceOp::sum, to, count, 0};
  Channel& line = channel(rank_, to);
  const std::uint64_t order = line.sent.load();
  RecordedCall& record = state_.record(state_.region->offset_of(group_), order, pack(call));
  if (!is_here(to)) {
    send_message(call, source, to, tag, order);
    line.sent.raise(order + 1);  // nobody reads it here: it counts
    record.done.store(1, std::memory_order_relaxed);
    return;
  }
  const auto [slot, index] =
      free_slot(*state_.region, line, [&](std::size_t size) { return state_.allocate(size); });
  std::vector<SlotMemory>& memories = slot_memory_[static_cast<std::size_t>(to)];
  memories.resize(std::max(memories.size(), index + 1));
  SlotMemory& memory = memories[index];
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
  if (memory.bytes < bytes) {
    if (memory.offset != 0) {
      state_.release(memory.offset);
    }
    memory.bytes = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
    memory.offset = state_.allocate(memory.bytes);
  }
  if (bytes != 0) {
    std::memcpy(state_.region->at(memory.offset), source, bytes);
  }
  slot->tag = tag;
  slot->order = order;
  slot->call = pack(call);
  slot->source = memory.offset;
  slot->full.store(1, std::memory_order_release);
  line.sent.raise(order + 1);
  record.done.store(1, std::memory_order_relaxed);
}

bool Engine::advance_receive(const PendingReceive& receive, bool block) {
  Channel& line = channel(receive.from, rank_);
  while (true) {
    // Of the messages up to here the first is found; later ones may come into slots that were
    // looked at already, before others in slots that were not.
    const std::uint64_t sent = line.sent.load();
    Message* found = nullptr;
    for (MessageBlock* part = &line.first; part != nullptr; part = next_block(*part)) {
      for (Message& message : part->messages) {
        if (message.full.load(std::memory_order_acquire) == 1 && message.tag == receive.tag &&
            message.order < sent && (found == nullptr || message.order < found->order)) {
          found = &message;
        }
      }
    }
    if (found != nullptr) {
      const Call theirs = unpack(found->call);
      if (theirs.dtype != receive.call.dtype || theirs.count != receive.call.count) {
        state_.fail_published(fmt::format(
            "receive: rank {} expects {} of {} from rank {} (tag {}), which sent {} of {} (group "
            "{})",
            state_.rank, receive.call.count, tessera::name_of(receive.call.dtype),
            ranks_[static_cast<std::size_t>(receive.from)], receive.tag, theirs.count,
            tessera::name_of(theirs.dtype), describe_group(*group_)));
      }
      const std::size_t bytes =
          static_cast<std::size_t>(receive.call.count) * size_of(receive.call.dtype);
      if (bytes != 0) {
        std::memcpy(receive.destination, state_.region->at(found->source), bytes);
      }
      found->full.store(0, std::memory_order_release);
      return true;
    }
    if (!block) {
      return false;
    }
    state_.wait(line.sent, sent + 1,
                {group_, &receive.call, receive.ticket - receive_ticket,
                 ranks_[static_cast<std::size_t>(receive.from)], this, this});
  }
}

Work Engine::receive_now(void* destination, std::int64_t count, DType dtype, int from, int tag) {
  const std::lock_guard guard(mutex_);
  state_.throw_if_failed();
  const Call call{CallKind::receive, dtype, ReduceOp::sum, from, count, 0};
  state_.record(state_.region->offset_of(group_), next_receive_ - receive_ticket, pack(call));
  receives_.push_back({next_receive_, static_cast<std::byte*>(destination), call, from, tag});
  return {this, next_receive_++};
}

void Engine::wait_receive(std::uint64_t ticket) {
  // Earlier receives with the same sender and tag complete first.
  const auto wanted = std::find_if(receives_.begin(), receives_.end(),
                                   [&](const PendingReceive& r) { return r.ticket == ticket; });
  if (wanted == receives_.end()) {
    return;
  }
  const PendingReceive last = *wanted;
  for (auto at = receives_.begin(); at != receives_.end() && at->ticket <= ticket;) {
    if (at->from == last.from && at->tag == last.tag) {
      advance_receive(*at, true);
      at = receives_.erase(at);
    } else {
      ++at;
    }
  }
}

bool Engine::progress_receives() {
  for (auto at = receives_.begin(); at != receives_.end();) {
    const bool blocked = std::any_of(receives_.begin(), at, [&](const PendingReceive& earlier) {
      return earlier.from == at->from && earlier.tag == at->tag;
    });
    if (!blocked && advance_receive(*at, false)) {
      at = receives_.erase(at);
    } else {
      ++at;
    }
  }
  return receives_.empty();
}

}  // namespace tessera::collective
