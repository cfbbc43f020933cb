export module tessera.ranks:point_to_point;

import tessera.base;
import :control;
import :region;

export namespace tessera::collective {

/// A message in flight. The sender fills a free slot, the receiver frees it.
struct Message {
  std::atomic<std::uint32_t> full{0};
  std::int32_t tag = 0;
  std::uint64_t order = 0;  ///< number of the message in its channel: equal tags arrive in order
  PackedCall call;
  std::uint64_t source = 0;
};

/// Slots of a channel. The sender appends a block when all slots are full; blocks stay.
struct MessageBlock {
  static constexpr int slots = 32;

  Message messages[slots];
  std::atomic<std::uint64_t> next{0};  ///< offset of the next block; 0: none yet
};

/// Messages from one rank of a group to another, in shared memory. As many as that has room for: a
/// send never waits for its receiver, so two ranks that both send first do not wait in a circle.
struct Channel {
  Counter sent;  ///< messages put in by the sender
  std::int32_t from = 0;
  std::uint64_t next = 0;  ///< offset of the receiver's next channel; 0: it has no more
  MessageBlock first;
};

/// The channel between two members of a group; null: nothing was sent or awaited yet.
Channel* find_channel(Region& region, GroupBlock& group, int from, int to);
/// Finds the channel, or makes it where there is none: most pairs of a large group never talk. The
/// caller holds the lock of extents and groups. Null: no room.
Channel* find_or_make_channel(Region& region, GroupBlock& group, int from, int to);

/// A slot that the receiver has emptied, or one of a new block for which `allocate` returns the
/// offset of so many bytes; and its number in the channel. Only the sender's side calls it.
std::pair<Message*, std::size_t> free_slot(
    Region& region, Channel& line, const std::function<std::uint64_t(std::size_t)>& allocate);

}  // namespace tessera::collective
