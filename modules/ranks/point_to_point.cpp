module;
#include <atomic>
#include <functional>
#include <new>
#include <utility>
module tessera.ranks;

import tessera.base;
import :control;
import :member;
import :point_to_point;
import :region;

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

}  // namespace tessera::collective
