module tessera.communication:engine;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import :communicator;
import :group_view;
import :mailbox;
import :observer;
import :operation;
import :publisher;
import :puller;
import :remote_sender;
import :state;
import :work;

namespace tessera::collective {

/// The state of a communicator: the calls in flight, and what moves them when. One algorithm for
/// processes and for threads. A call is published when it is issued; its data is pulled by the
/// receivers.
class Engine {
 public:
  Engine(WorldState& state, GroupBlock* group);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  inline Work issue(Operation&& operation) {
    return is_observed() ? issue_observed(std::move(operation)) : issue_now(std::move(operation));
  }
  inline void wait(std::uint64_t ticket) {
    is_observed() ? wait_observed(ticket) : wait_now(ticket);
  }
  /// Issues a call whose data others move: the members are told of it, and compare it with theirs
  /// while they wait for anything or issue the next one.
  AnnouncedCall announce(Operation&& operation);
  /// Returns when all members have issued the calls that were announced, and they are the same.
  void finish_announced();
  bool done(std::uint64_t ticket);
  void wait_sources_free();
  bool sources_free();
  void keep_until_read(std::shared_ptr<void> sources);
  void drop_read();
  /// Whether all peers are done with the first `calls` calls.
  bool peers_done(std::uint64_t calls) const { return view_.peers_done(calls); }
  /// Moves calls forward without waiting. Returns whether calls remain. Skips when in use.
  bool try_progress();
  /// Makes progress of collectives, when the caller holds the lock.
  bool progress_held() { return !progress(issued(), false); }

  void send(const void* source, std::int64_t count, DType dtype, int to, int tag);
  Work receive(void* destination, std::int64_t count, DType dtype, int from, int tag);

  // Messages whose data others move. `call`: CallKind::send or receive, its root the other member.
  /// Carries the message out by `run`; observers see it as a call.
  void carry_out(const Call& call, const std::function<void()>& run);
  /// Tells the other member.
  void announce_message(const Call& call, int tag);
  /// See Mailbox.
  Mailbox::MessageHeader next_message(const Call& wanted);
  void check_fits(const Call& wanted, const Call& theirs, int tag) const {
    mailbox_.check_fits(wanted, theirs, tag);
  }

  const GroupView& view() const { return view_; }
  /// Any thread may call it.
  std::uint64_t issued() const { return issued_.load(std::memory_order_relaxed); }

 private:
  // While the calling thread has an observer.
  Work issue_observed(Operation&& operation);
  void wait_observed(std::uint64_t ticket);
  Activity activity(Activity::Kind kind, const Call& call, std::uint64_t sequence) const;

  Work issue_now(Operation&& operation);
  AnnouncedCall announce_now(Operation&& operation);
  /// The number of the call. The lock is held.
  std::uint64_t enter(Operation&& operation);
  void wait_now(std::uint64_t ticket);
  void wait_sources_free_now();
  void send_now(const void* source, std::int64_t count, DType dtype, int to, int tag);
  Work receive_now(void* destination, std::int64_t count, DType dtype, int from, int tag);

  /// Moves the calls before `until`, in their order; with `block` until they are complete. Returns
  /// whether they are.
  bool progress(std::uint64_t until, bool block);
  bool advance(Operation& op, bool block);
  void finish_reading(Operation& op);
  /// Whether no member reads the operands of calls that were complete when this one was issued. A
  /// call is complete only then, so whoever completes it may overwrite them.
  bool read_before(const Operation& op, bool block) const;
  /// Whether the data of a slow link is here, when all have issued the call.
  bool arrived(Operation& op, bool block) const;
  /// Error: a member's call differs from this rank's.
  void verify(const Operation& op) const;

  GroupView view_;
  std::mutex mutex_;
  std::atomic<std::uint64_t> issued_{0};  // written under the lock
  std::atomic<std::uint64_t> completed_{0};
  std::deque<Operation> queue_;
  Publisher publisher_;
  Puller puller_;
  RemoteSender remote_;
  Mailbox mailbox_;
  std::mutex kept_mutex_;
  /// Memory that peers may still read, and how many calls they must be done with before it goes
  /// away.
  std::deque<std::pair<std::uint64_t, std::shared_ptr<void>>> kept_;
};

}  // namespace tessera::collective
