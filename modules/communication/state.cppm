module tessera.communication:state;

import tessera.base;
import tessera.device;
import tessera.calls;
import tessera.ranks;
import tessera.machines;
import :buffer;
import :communicator;
import :device_group;
import :device_communicators;
import :world;

namespace tessera::collective {

/// Which rank waits for which, and in which call; for the texts of long waits.
struct WaitReason {
  GroupBlock* group;
  const Call* call;
  std::uint64_t sequence;
  int peer;                ///< global rank
  const Engine* self;      ///< its lock is held: it is not progressed as others are
  Engine* idle = nullptr;  ///< self, when none of its collectives is in the middle of a step
  bool sent = false;       ///< it waits until a message has left: `peer` may end meanwhile
};

/// A link as slow as a test asks for: what a rank receives in a collective arrives `latency`
/// seconds after the last rank has issued it, plus the time that the bytes take, one call after the
/// other. It moves by itself, as a network card's data does.
class SlowLink {
 public:
  SlowLink(double latency, double bytes_per_second)
      : latency_(latency), bytes_per_second_(bytes_per_second) {}
  /// TESSERA_LINK="latency_us=100,bandwidth_gb=0.5"; null: not set. Error (input): another form.
  static std::unique_ptr<SlowLink> from_environment();

  /// When the bytes of a call that was issued at this time arrive. Nanoseconds of the steady clock.
  std::int64_t arrival(std::int64_t issued, std::int64_t bytes);

 private:
  double latency_;
  double bytes_per_second_;
  std::mutex mutex_;
  std::int64_t free_at_ = 0;
};

/// Whether the calling thread works beside the steps of its rank (RankContext::Scope).
bool works_beside_steps();

/// The state of a World. Buffers share it, so it lives as long as the last of them.
class WorldState : public std::enable_shared_from_this<WorldState> {
 public:
  explicit WorldState(const RankPlace& place);
  ~WorldState();

  const std::shared_ptr<Region> region;
  Control* const control;
  const int rank;
  const int size;
  const Transport transport;
  Bridge* const bridge;  ///< to the other machines; null: there are none
  /// How many ranks are on this rank's machine, and how many of them have a lower number.
  const int ranks_here;
  const int number_here;
  double timeout = 300;
  const double report_after;  ///< seconds after which a wait is reported
  bool background = false;    ///< see World; the rank's own thread uses it
  DeviceCollectives device_collectives = DeviceCollectives::ordered;  ///< see World; likewise
  const std::unique_ptr<SlowLink> slow_link = SlowLink::from_environment();
  /// For how long threads of this rank have waited for other ranks (but those beside its steps).
  std::atomic<std::int64_t> waited_nanoseconds{0};
  /// The communicators of devices.
  const std::unique_ptr<DeviceCommunicators> devices;

  /// Allocates shared memory for this rank; throws when the region is full.
  std::uint64_t allocate(std::size_t bytes);
  /// Allocates, or returns 0 where there is no room.
  std::uint64_t try_allocate(std::size_t bytes);
  SharedBuffer allocate_buffer(std::size_t bytes) {
    return {shared_from_this(), allocate(bytes), bytes};
  }
  /// Memory for a tensor that peers will read, from a caching allocator over the region; null:
  /// there are no peers, or there is none left. Whoever frees it knows that nobody reads it.
  std::shared_ptr<void> allocate_for_peers(std::size_t bytes);
  /// Frees it at once.
  void release(std::uint64_t offset) noexcept;
  /// Frees it when no peer reads it any more.
  void retire(std::uint64_t offset) noexcept;

  Communicator& communicator(std::span<const int> ranks, std::string_view name);
  Communicator& everyone();
  /// Destroys the communicators and marks this rank as ended.
  void close();

  void throw_if_failed() const {
    if (control->failed.load(std::memory_order_acquire) != 0) [[unlikely]] {
      throw_peer_failed();
    }
  }
  [[noreturn]] void throw_peer_failed() const;
  /// Publishes the error and throws it; PeerFailed when another was first.
  [[noreturn]] void fail_published(const std::string& text, ErrorKind kind = ErrorKind::run);

  /// Returns when the counter has reached `target`. Looks briefly, then sleeps; meanwhile moves the
  /// calls of other communicators forward, so that no rank waits in a circle.
  inline void wait(Counter& counter, std::uint64_t target, const WaitReason& reason) {
    if (counter.load() < target) {
      wait_slow(counter, target, reason);
    }
  }

  /// This rank's record; a simulated world has only its own.
  inline RankRecord& own_record() const {
    return control->ranks()[transport == Transport::fake ? 0 : rank];
  }
  /// Takes the lock of extents and groups (unlock by control->lock). Throws as a wait does.
  void lock();

  std::unique_ptr<DeviceWait> watch_device_wait();
  /// The same while this rank waits for the members of a group, which are joining it: global ranks.
  std::unique_ptr<DeviceWait> watch_device_join(std::vector<int> members, std::string what);

  /// Enters a call into the flight recorder. Any thread may call it.
  RecordedCall& record(std::uint64_t group, std::uint64_t sequence, const PackedCall& call);

 private:
  class LongWait;
  class WatchedWait;
  class WatchedJoin;
  void wait_slow(Counter& counter, std::uint64_t target, const WaitReason& reason);
  /// Whether other communicators have calls in flight.
  bool progress_others(const Engine* self);
  /// `hash`: of the ranks.
  Communicator& find_or_make(std::span<const int> ranks, std::uint64_t hash, std::string_view name);
  void reap_retired();

  struct RetiredBuffer {
    std::uint64_t offset;
    std::vector<std::pair<Engine*, std::uint64_t>> readers;
  };

  bool spin_;
  // Seconds between two looks of a rank that waits: at its other communicators, and at whether the
  // run has failed. Longer where many ranks share a core, which would do nothing else.
  double look_others_;
  double look_failed_;
  std::mutex recorder_mutex_;        // threads of this rank call at the same time
  std::mutex mutex_;                 // guards the lists below: any thread may drop a buffer
  std::atomic<bool> closed_{false};  // written under the lock
  /// By name and the hash of the ranks, which only the shared memory has.
  std::map<std::pair<std::string, std::uint64_t>, std::vector<std::unique_ptr<Communicator>>>
      communicators_;
  /// Those without a name, at a place that follows from their ranks: found without the lock.
  std::array<std::atomic<Communicator*>, 64> unnamed_{};
  std::atomic<Communicator*> everyone_{nullptr};
  std::vector<Engine*> engines_;
  std::vector<RetiredBuffer> retired_;
  /// Takes from the region, under its lock; 0: no room.
  std::uint64_t take_extent(std::size_t bytes);
  class SmallExtents;
  std::unique_ptr<SmallExtents> small_;
  class Segments;
  std::unique_ptr<Segments> segments_;
  std::unique_ptr<BlockAllocator> blocks_;  // of allocate_for_peers
};

}  // namespace tessera::collective
