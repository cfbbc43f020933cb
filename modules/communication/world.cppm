export module tessera.communication:world;

import tessera.base;
import tessera.device;
import tessera.calls;
import tessera.ranks;
import tessera.machines;
import :buffer;
import :communicator;
import :device_group;

export namespace tessera::collective {

/// Ways between ranks.
enum class Transport : std::uint8_t {
  single,   ///< one rank, no shared memory
  shm,      ///< processes of one machine
  threads,  ///< threads of one process, for tests
  fake,     ///< a simulated size: collectives do nothing, for planning
};

/// Another rank failed first and its error was published. Whoever prints errors skips this one.
class PeerFailed : public Error {
 public:
  using Error::Error;
};
inline bool is_of_peer(const std::exception& error) {
  return dynamic_cast<const PeerFailed*>(&error) != nullptr;
}

/// Where a rank is, as whoever starts it knows.
struct RankPlace {
  std::shared_ptr<Region> region;  ///< laid out by Control::create
  int rank = 0;
  int size = 1;
  Transport transport = Transport::single;
  Bridge* bridge = nullptr;    ///< to the other machines; null: there are none
  double report_seconds = 10;  ///< a wait that lasts longer is reported on stderr, once
};

/// What a rank has told of its waits.
struct RankWaits {
  std::int64_t step = -1;  ///< after which it told; -1: it has not told yet
  double seconds = 0;      ///< for which it has waited for other ranks since it started
};

/// This rank among all. Made once per rank by launch, join_launch or run_threads.
class World {
 public:
  explicit World(const RankPlace& place);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();

  /// A world of one rank.
  static std::unique_ptr<World> single();
  /// A world of a simulated size; its collectives return at once and write nothing.
  static std::unique_ptr<World> fake(int rank, int size);
  /// The world of this rank: of the calling thread (thread transport), else of the process. Where
  /// none was made, a world of one rank.
  static World& current();

  int rank() const;
  int size() const;
  /// How many ranks are on this rank's machine, and this rank's number among them.
  int ranks_here() const;
  int number_here() const;
  Transport transport() const;

  /// The communicator of an ordered list of different global ranks that holds this rank. Made on
  /// first use, without communication, and the same object ever after. Another `name` gives one
  /// with its own state, for another thread or purpose (checkpoints).
  Communicator& communicator(std::span<const int> ranks, std::string_view name = "");
  /// The communicator of these ranks whose data moves between their devices, by the plugin of the
  /// kind "collectives" with the name of the device's kind; null: there is none, on any of them.
  /// The first call for a group and a kind of device is a collective one: where there is a plugin,
  /// it waits for all members. Errors: some members have a plugin and some do not; this rank has
  /// used another device of the kind in the group.
  Communicator* communicator_on(Device device, std::span<const int> ranks,
                                std::string_view name = "");
  /// The communicator of all ranks.
  Communicator& everyone();

  /// Memory of this rank that every rank can reach. Local: no other rank takes part.
  SharedBuffer allocate(std::size_t bytes);
  /// Allocates from a cache, for memory that is needed often and for a short time; null: there are
  /// no other ranks, or there is none left. It must not be freed while peers may read it.
  std::shared_ptr<void> allocate_for_peers(std::size_t bytes);
  /// Whether the other ranks can read this address of the calling rank.
  bool peers_reach(const void* data) const;

  /// Sets what this rank is doing, for the error message if it fails or dies. Cheap; `where` is cut
  /// at 95 bytes. Step -1 is before the first.
  void set_progress(std::int64_t step, std::string_view where);
  /// Tells the other ranks for how long this one has waited for others, now that its step `step` is
  /// done. It is a store into shared memory; other machines are told within a tenth of a second.
  void tell_waits(std::int64_t step);
  /// What a rank has told last. After a collective call of all ranks that follows tell_waits(step)
  /// on all, it is of `step` for ranks of this machine.
  RankWaits waits_of(int rank) const;
  /// The name of a rank's machine; empty: all ranks are on one.
  std::string machine_of(int rank) const;

  /// Makes this error the run's, unless there is one: every rank that waits anywhere then throws
  /// PeerFailed. Returns whether it was the first.
  bool publish_error(std::string_view text, ErrorKind kind = ErrorKind::run);
  bool failed() const;
  /// Throws PeerFailed when any rank has failed.
  void throw_if_failed() const;
  /// The published error; an empty text when there is none.
  FirstError first_error() const;

  /// Whether the user asked to stop (a signal, or a reader of stdout that has gone). Ranks may see
  /// it at different steps: agree on it by a collective before acting.
  bool interrupt_requested() const;
  /// Whether any rank has seen the request: one answer on all ranks. All ranks call it.
  bool interrupt_agreed();
  void request_interrupt();

  /// Whether a thread of the rank moves the data of collectives that were issued, while the rank's
  /// own thread computes. If not (the default), data moves while the rank waits for it: cheaper
  /// where the ranks have no cores to spare.
  bool background() const;
  void set_background(bool background);

  /// How collectives of tensors on devices move, in groups that are first used afterwards; all
  /// ranks choose alike. The default is `ordered`.
  void set_device_collectives(DeviceCollectives how);

  /// Watches a wait of the calling thread for a device: it ends when another rank has failed or
  /// died, when the calls of the group whose data is awaited differ, and at the time limit.
  std::unique_ptr<DeviceWait> watch_device_wait() const;

  /// How long a wait may last before it is an error. Default 300, or TESSERA_TIMEOUT.
  void set_timeout(double seconds);

  /// The flight recorder: the last calls of each rank, oldest first, one per line.
  std::string recent_calls(int calls_per_rank = 8) const;

 private:
  std::shared_ptr<WorldState> state_;
};

/// As whom a thread acts: its rank and its world. Another thread that works in the rank's name (a
/// stream's) takes it over within a scope.
class RankContext {
 public:
  /// The calling thread's.
  RankContext();

  class Scope {
   public:
    /// `beside`: the thread works beside the rank's steps, and what it waits for does not delay
    /// them (see World::tell_waits).
    explicit Scope(const RankContext& context, bool beside = false);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    World* before_;
    int rank_before_;
    bool beside_before_;
  };

 private:
  World* world_;
  int rank_;
};

}  // namespace tessera::collective
