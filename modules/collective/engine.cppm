module tessera.collective:engine;

import tessera.base;
import :bridge;
import :call;
import :communicator;
import :control;
import :forms;
import :point_to_point;
import :region;
import :state;
import :work;

namespace tessera::collective {

/// What a rank publishes to its peers when it issues a call. Entry n % ring is rewritten only when
/// every peer is done with call n.
struct alignas(64) Publication {
  PackedCall call;
  std::uint64_t source = 0;  ///< offset of the data, or of a table of offsets
  std::uint64_t result = 0;  ///< where the second phase of all_reduce finds this rank's piece, or
                             ///< a table of offsets
  std::int64_t time = 0;     ///< of the issue, on this machine's steady clock
};

/// One rank's side of a group, in shared memory. All numbers count calls.
struct Member {
  static constexpr std::uint64_t ring = 64;

  Counter published;  ///< calls whose source peers may read
  Counter reduced;    ///< two-phase calls: this rank's piece is ready; the call's number + 1
  Counter done;       ///< calls in which this rank reads nothing of its peers any more
  std::atomic<std::uint64_t> channels{0};  ///< offset of the first of those that end here
  Publication publications[ring];
};

/// Shared memory of this rank for sources that peers cannot reach themselves.
class Staging {
 public:
  explicit Staging(WorldState& state) : state_(state) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  /// Room for `bytes` until all peers are done with call `sequence`; `all_done`: the number of
  /// calls that all are done with. The first free block is taken, so that small calls that follow
  /// each other stay in the cache.
  std::uint64_t take(std::size_t bytes, std::uint64_t sequence, std::uint64_t all_done);

 private:
  static constexpr std::size_t kept_bytes = std::size_t{64} << 20;
  struct Block {
    std::uint64_t offset;
    std::size_t bytes;
    std::uint64_t busy_until;
  };
  WorldState& state_;
  std::vector<Block> blocks_;
  std::size_t total_ = 0;
};

/// A call that this rank has issued and not completed.
struct Operation {
  enum class Phase : std::uint8_t { gathering_peers, second_phase, held, complete };

  Call call;
  Segment array{};                          ///< what moves, where the call is not of a list
  std::vector<Segment> segments{};          ///< of a list
  std::vector<std::int64_t> send_begins{};  ///< with counts: see Pair
  std::vector<std::int64_t> receive_begins{};
  ReduceSegmentsOptions options{};

  const CallForm* form = nullptr;       ///< null: the engine looks it up when it issues the call
  Read (*read)(const Pair&) = nullptr;  ///< of the first phase; null: nothing moves

  Phase phase = Phase::gathering_peers;
  bool two_phase = false;
  bool direct = false;          ///< peers read the source itself
  std::byte* result = nullptr;  ///< two-phase: base of what peers gather; own piece at its offset
  std::uint64_t sequence = 0;
  std::uint64_t complete_before = 0;  ///< calls that were complete when this one was issued
  RecordedCall* record = nullptr;
  std::int64_t arrives = 0;  ///< over a slow link; 0: not known yet

  std::span<const Segment> arrays() const {
    return form != nullptr && form->list ? std::span<const Segment>(segments)
                                         : std::span<const Segment>(&array, 1);
  }
};

/// The state of a communicator: the calls in flight and how they move. One algorithm for processes
/// and for threads. A call is published when it is issued; its data is pulled by the receivers.
class Engine {
 public:
  /// Larger reductions are cut into one piece per rank; for smaller ones every rank reduces all.
  static constexpr std::size_t symmetric_bytes = std::size_t{256} << 10;

  Engine(WorldState& state, GroupBlock* group);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  inline Work issue(Operation&& operation) {
    return observed() ? issue_observed(std::move(operation)) : issue_now(std::move(operation));
  }
  inline void wait(std::uint64_t ticket) { observed() ? wait_observed(ticket) : wait_now(ticket); }
  bool done(std::uint64_t ticket);
  void wait_sources_free();
  bool sources_free();
  void keep_until_read(std::shared_ptr<void> sources);
  void drop_read();
  /// Whether all peers are done with the first `calls` calls.
  bool peers_done(std::uint64_t calls);
  /// Moves calls forward without waiting. Returns whether calls remain. Skips when in use.
  bool try_progress();
  /// The same for collectives, when the caller holds the lock.
  bool progress_held() { return !progress(issued(), false); }

  void send(const void* source, std::int64_t count, DType dtype, int to, int tag);
  Work receive(void* destination, std::int64_t count, DType dtype, int from, int tag);

  WorldState& state() const { return state_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::vector<int>& ranks() const { return ranks_; }
  std::string_view name() const;
  /// Any thread may call it.
  std::uint64_t issued() const { return issued_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t receive_ticket = std::uint64_t{1} << 63;

  // observer.cpp: whether the thread has an observer, and what is done then
  static bool observed();
  Work issue_observed(Operation&& operation);
  void wait_observed(std::uint64_t ticket);
  void note_completed(std::uint64_t ticket) const;

  Work issue_now(Operation&& operation);
  void wait_now(std::uint64_t ticket);
  void wait_sources_free_now();
  void send_now(const void* source, std::int64_t count, DType dtype, int to, int tag);
  Work receive_now(void* destination, std::int64_t count, DType dtype, int from, int tag);

  const Publication& publication(int member, std::uint64_t sequence) const {
    return members_[member].publications[sequence % Member::ring];
  }
  /// A pair of ranks of which one is this rank.
  Pair pair(const Operation& op, const Segment& array, int reader, int member) const {
    Pair made{op.call, array, size_, reader, member};
    if (op.form->counts) [[unlikely]] {
      made.send_begins = member == rank_ ? op.send_begins.data() : nullptr;
      made.receive_begins = reader == rank_ ? op.receive_begins.data() : nullptr;
    }
    return made;
  }
  const std::uint64_t* table_of(int member, const Operation& op) const;
  bool reachable(const void* pointer, std::size_t bytes) const;

  // publish.cpp: what peers are told at issue; each returns the offset to publish
  struct Span {  // elements
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  void publish(Operation& op);
  /// From the first to the last element of this rank's array that peers read.
  Span read_by_peers(const Operation& op, const Segment& array) const;
  bool overwrites_what_peers_read(const Operation& op, const Span& span) const;
  /// Copies what peers read, to where element 0 would be at `to`.
  void stage(const Operation& op, const Segment& array, std::uint64_t to) const;
  std::uint64_t publish_array(Operation& op);
  std::uint64_t publish_result(Operation& op, std::uint64_t source);
  std::uint64_t publish_list(Operation& op);
  std::uint64_t publish_counts(Operation& op);
  void finish_reading(Operation& op);
  /// Moves one operation; with `block` until it is complete. Returns whether it is.
  bool advance(Operation& op, bool block);
  /// Waits for, or looks at, one counter of every peer.
  bool all_reached(Counter Member::* counter, const Operation& op, bool block);
  /// Whether no member reads the operands of calls that were complete when this one was issued. A
  /// call is complete only then, so whoever completes it may overwrite them.
  bool read_before(const Operation& op, bool block);
  /// The same for the data of a slow link, when all have issued the call.
  bool arrived(Operation& op, bool block);
  bool progress(std::uint64_t until, bool block);
  void verify(const Operation& op);
  std::uint64_t all_done();

  // transfer.cpp: what moves once all peers have published
  void pull(Operation& op);
  void gather_results(Operation& op);
  /// Where a member has element 0 of an array (with counts: of what it sends to this rank). This
  /// rank's own as it was given, a peer's through its publication.
  const std::byte* source_of(int member, std::size_t array, const Operation& op) const;
  /// The same for the pieces that the first phase has reduced.
  std::byte* result_of(int member, std::size_t array, const Operation& op) const;
  void check_counts(const Operation& op);
  void copy_reads(Operation& op);
  void reduce_reads(Operation& op);
  /// Reduces `count` elements of sources_.
  void reduce_sources(void* destination, std::int64_t count, const Operation& op);

  // remote.cpp: what members on other machines are sent
  void find_machines();
  bool is_here(int member) const;
  /// The counter of the calls whose sources a member does not read any more.
  Counter& done_counter(int member) const {
    return *done_counters_[static_cast<std::size_t>(member)];
  }
  struct Remote;
  class Ranges;
  void send_call(const Operation& op);
  void send_result(const Operation& op);
  void send_ranges(const Operation& op, const Remote& remote, Topic topic,
                   const std::vector<std::byte*>& bases, const std::vector<std::uint64_t>& extra,
                   bool table, const Ranges& ranges);
  static void put_ranges(Outgoing& message, Writer& writer, const std::vector<std::byte*>& bases,
                         const std::vector<std::uint64_t>& extra, bool table, const Ranges& ranges);
  void send_message(const Call& call, const void* source, int to, int tag, std::uint64_t order);

  // point_to_point.cpp
  Channel& channel(int from, int to);
  MessageBlock* next_block(MessageBlock& block) const;
  bool advance_receive(const PendingReceive& receive, bool block);
  void wait_receive(std::uint64_t ticket);
  bool progress_receives();

  WorldState& state_;
  GroupBlock* group_;
  Member* members_;
  std::vector<int> ranks_;
  /// A machine with members of the group.
  struct Remote {
    int machine = -1;
    std::vector<int> members{};
    std::shared_ptr<Departures> departures{};
  };
  std::vector<Remote> remotes_;
  std::vector<Counter*> done_counters_;
  int rank_ = 0;
  int size_ = 0;
  std::mutex mutex_;
  std::atomic<std::uint64_t> issued_{0};  // written under the lock
  std::atomic<std::uint64_t> completed_{0};
  std::deque<Operation> queue_;
  Staging staging_;
  std::vector<std::vector<SlotMemory>> slot_memory_;  // of the channel to each member
  std::vector<Channel*> lines_to_;                    // by member; null: not used yet
  std::vector<Channel*> lines_from_;
  std::deque<PendingReceive> receives_;
  std::uint64_t next_receive_ = receive_ticket;
  std::vector<const void*> sources_;  // scratch of reductions
  std::vector<Span> spans_;           // and of lists that are published
  std::mutex kept_mutex_;
  /// What peers may still read, and how many calls they must be done with before it goes away.
  std::deque<std::pair<std::uint64_t, std::shared_ptr<void>>> kept_;
};

}  // namespace tessera::collective
