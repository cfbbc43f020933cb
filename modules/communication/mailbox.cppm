module tessera.communication:mailbox;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import :group_view;
import :remote_sender;

namespace tessera::collective {

/// Messages between this rank and single members of its group.
class Mailbox {
 public:
  /// Tickets of receives begin here: those of collectives are smaller.
  static constexpr std::uint64_t first_ticket = std::uint64_t{1} << 63;

  Mailbox(const GroupView& group, const RemoteSender& remote);

  /// Without a source only the call and the tag are sent: devices move the data.
  void send(const void* source, std::int64_t count, DType dtype, int to, int tag);
  /// Returns the ticket of the receive.
  std::uint64_t receive(void* destination, std::int64_t count, DType dtype, int from, int tag);
  /// A message without data.
  struct MessageHeader {
    Call call;
    int tag = 0;
  };
  /// The next message of the member wanted.root, in the order of sending and with any tag; waits
  /// for it. All of that member's messages are without data.
  MessageHeader next(const Call& wanted);
  /// Error, on all ranks: the member wanted.root has sent another type or number of elements.
  void check_fits(const Call& wanted, const Call& theirs, int tag) const;
  std::uint64_t next_ticket() const { return next_ticket_; }
  /// Returns when the receive is complete; earlier ones with the same sender and tag are then too.
  void wait(std::uint64_t ticket);
  bool done(std::uint64_t ticket) const;
  /// Completes the receives whose messages are here. Returns whether none remains.
  bool progress();

 private:
  /// A receive that was issued and has not found its message.
  struct Receive {
    std::uint64_t ticket;
    std::byte* destination;
    Call call;
    int from;
    int tag;
  };
  /// Shared memory that belongs to one slot of one channel, grown as needed.
  struct SlotMemory {
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
  };

  Channel& channel(int from, int to);
  MessageBlock* next_block(MessageBlock& block) const;
  /// The first message of those that were sent that fits(message); null: not here yet.
  template <class Fits>
  Message* find(Channel& line, std::uint64_t sent, const Fits& fits) const;
  void take(const Receive& receive, Message& message) const;
  bool advance(const Receive& receive, bool block);

  const GroupView& group_;
  const RemoteSender& remote_;
  /// Of the channel to each member, once it sends.
  std::vector<std::vector<SlotMemory>> slot_memory_;
  std::vector<Channel*> lines_to_;  // by member; null: not used yet
  std::vector<Channel*> lines_from_;
  std::vector<std::uint64_t> taken_from_;  // by member: how many messages next() has returned
  std::deque<Receive> receives_;
  std::uint64_t next_ticket_ = first_ticket;
};

}  // namespace tessera::collective
