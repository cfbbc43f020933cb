export module tessera.machines:bridge;

import tessera.base;
import tessera.ranks;
import :transport;
import :wire;

export namespace tessera::collective {

/// Which machine each rank is on. Machines are numbered by their lowest rank.
struct Machines {
  std::vector<std::string> names;
  std::vector<int> of_rank;
  std::vector<std::vector<int>> ranks;
  /// `names_of_ranks`: the machine of each rank.
  explicit Machines(const std::vector<std::string>& names_of_ranks);
  /// The rank of `machine` that receives what `sender` has for it: always the same, so that a
  /// sender's messages keep their order.
  inline int gateway(int sender, int machine) const {
    const auto& there = ranks[static_cast<std::size_t>(machine)];
    return there[static_cast<std::size_t>(sender) % there.size()];
  }
};

/// How many calls of one rank in one group have left for one machine: all messages of the call were
/// sent, so what they were sent from may be overwritten.
class Departures {
 public:
  Counter done;
  /// The next call has so many messages.
  void expect(int messages);
  /// One message of call `sequence` has left.
  void left(std::uint64_t sequence);

 private:
  std::mutex mutex_;
  std::deque<int> outstanding_;  // of the calls from done on
};

class Mirror;

/// Connects the region of one machine with those of the others. Ranks of other machines are
/// mirrored in the region: a thread of each rank receives what they publish and writes it there, so
/// that the ranks of this machine wait for them, compare calls with them and read their data as if
/// they were here.
class Bridge final : public MessageTransport::Receiver {
 public:
  using MakeTransport = std::function<std::unique_ptr<MessageTransport>()>;
  Bridge(MakeTransport make, int rank, int size);
  ~Bridge() override;

  /// Meets all ranks, with the name of this rank's machine. Error: not within `timeout` seconds, or
  /// ranks have another `protocol`. A wait of `report_after` seconds is reported: by one rank of
  /// each machine, since nobody knows yet who is there.
  const Machines& meet(std::uint64_t protocol, std::string_view machine, double timeout,
                       double report_after = Patience::reported_after);
  /// From here on the machine's region is connected. `watch`: other ranks of this machine are
  /// processes that nobody else watches.
  void attach(std::shared_ptr<Region> region, bool watch);
  const Machines& machines() const { return *machines_; }
  int machine() const { return machines_->of_rank[static_cast<std::size_t>(rank_)]; }
  /// The ranks of this machine.
  const std::vector<int>& mates() const {
    return machines_->ranks[static_cast<std::size_t>(machine())];
  }
  bool is_here(int other) const {
    return machines_->of_rank[static_cast<std::size_t>(other)] == machine();
  }

  void post(OutgoingMessage&& message);
  /// Returns when all that was posted has left, or the run has failed.
  void flush();
  /// Whether this machine prints the first error: the first machine does; another one only when
  /// nothing was heard of that for a while.
  bool prints_error();
  /// Returns when all ranks of the world have ended, or a while after an error, and disconnects.
  void finish();

  std::vector<MessageTransport::Part> arrive(int from, std::span<const std::byte> head,
                                             std::uint64_t& token) override;
  void arrived(std::uint64_t token) override;
  void sent(std::uint64_t token) override;
  void lost(int rank, std::string_view why) override;

 private:
  void run();
  void serve();
  bool send_posted();
  /// Tells the other machines what is new here.
  void forward();
  void forward_state();
  void watch_mates();
  void to_gateways(const std::vector<std::byte>& head);
  void to_everyone(const std::vector<std::byte>& head);
  void take_state(int from, Reader& reader);
  bool all_ended() const;
  void idle(bool moved);

  struct Thread;
  struct Shared;
  MakeTransport make_;
  int rank_;
  int size_;
  std::unique_ptr<Thread> thread_;
  std::unique_ptr<Shared> shared_;  // the outbox and what the rank's thread and ours agree on
  std::unique_ptr<MessageTransport> transport_;
  std::unique_ptr<const Machines> machines_;
  std::shared_ptr<Region> region_;
  Control* control_ = nullptr;
  std::unique_ptr<Mirror> mirror_;
  std::map<std::uint64_t, OutgoingMessage> leaving_;
  std::uint64_t next_token_ = 1;
  bool watch_ = false;
  struct SentState {
    bool failed = false;
    bool interrupted = false;
    bool printed = false;
    bool ended = false;
    std::uint64_t state = 0;
    std::int64_t at = 0;
  };
  SentState sent_;
  std::int64_t moved_at_ = 0;
};

}  // namespace tessera::collective
