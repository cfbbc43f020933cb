export module tessera.ranks:control;

import tessera.base;
import tessera.calls;
import :region;

export namespace tessera::collective {

/// A number in shared memory that one rank raises and others wait for, on its own cache line.
struct alignas(64) Counter {
  std::atomic<std::uint64_t> value{0};
  std::atomic<std::uint32_t> waiters{0};
  /// When those who slept were last woken: nanoseconds of this machine's steady clock.
  std::atomic<std::int64_t> woken{0};

  inline std::uint64_t load() const { return value.load(std::memory_order_acquire); }
  /// Stores and wakes those who sleep. Sequentially consistent on both sides: either the
  /// sleeper's last load sees the value, or this call sees the sleeper.
  inline void raise(std::uint64_t to) {
    value.store(to, std::memory_order_seq_cst);
    if (waiters.load(std::memory_order_seq_cst) != 0) {
      wake();
    }
  }
  void wake();
  /// Sleeps until the value may have moved away from `seen`, at most `seconds`.
  void sleep(std::uint64_t seen, double seconds);
};

/// Text in shared memory that others may read while it is written: words, not bytes, and cut to
/// the room there is. A torn read shows mixed text, never a race.
template <std::size_t Words>
struct SharedText {
  std::atomic<std::uint64_t> words[Words] = {};

  inline void store(std::string_view text) {
    for (std::size_t w = 0; w < Words; ++w) {
      std::uint64_t packed = 0;
      for (std::size_t b = 0; b < 8 && 8 * w + b < text.size() && 8 * w + b + 1 < 8 * Words; ++b) {
        packed |= std::uint64_t{static_cast<unsigned char>(text[8 * w + b])} << (8 * b);
      }
      words[w].store(packed, std::memory_order_relaxed);
      if (packed >> 56 == 0) {
        break;  // the terminating zero is written
      }
    }
  }
  inline std::string load() const {
    std::string text;
    for (const auto& word : words) {
      const std::uint64_t packed = word.load(std::memory_order_relaxed);
      for (int b = 0; b < 8; ++b) {
        const auto c = static_cast<char>(packed >> (8 * b));
        if (c == '\0') {
          return text;
        }
        text += c;
      }
    }
    return text;
  }
};

/// A call as three words, as publications and the flight recorder keep it.
struct PackedCall {
  std::uint64_t head = 0;
  std::uint64_t count = 0;
  std::uint64_t shape = 0;
  friend bool operator==(const PackedCall&, const PackedCall&) = default;
};
inline PackedCall pack(const Call& call) {
  return {static_cast<std::uint64_t>(call.kind) | static_cast<std::uint64_t>(call.dtype) << 8 |
              static_cast<std::uint64_t>(call.reduce) << 16 |
              static_cast<std::uint64_t>(static_cast<std::uint32_t>(call.root)) << 32,
          static_cast<std::uint64_t>(call.count), call.shape};
}
inline Call unpack(const PackedCall& p) {
  return {static_cast<CallKind>(p.head & 0xff),
          static_cast<DType>(p.head >> 8 & 0xff),
          static_cast<ReduceOp>(p.head >> 16 & 0xff),
          static_cast<std::int32_t>(static_cast<std::uint32_t>(p.head >> 32)),
          static_cast<std::int64_t>(p.count),
          p.shape};
}

/// One entry of the flight recorder. Written by its rank only, read by anyone on failure.
struct RecordedCall {
  std::atomic<std::uint64_t> group{0};     ///< offset of the GroupBlock
  std::atomic<std::uint64_t> sequence{0};  ///< number of the call in its group
  std::atomic<std::uint64_t> head{0};
  std::atomic<std::uint64_t> count{0};
  std::atomic<std::uint64_t> shape{0};
  std::atomic<std::uint64_t> done{0};
};

struct GroupBlock;

/// A call of the flight recorder.
struct FlightRecord {
  std::string call;  ///< "all_gather(64 x f32)"
  GroupBlock* group = nullptr;
  std::uint64_t sequence = 0;
  bool complete = false;
};

/// For how long a rank has waited for other ranks, up to the end of a step, since it started. It
/// tells one step after the other; reading is torn only when two steps end meanwhile.
class ReportedWaits {
 public:
  struct StepWaits {
    std::int64_t step = -1;  ///< -1: it has not told yet
    std::int64_t nanoseconds = 0;
  };
  inline void store(const StepWaits& waits) {
    nanoseconds_[waits.step & 1].store(waits.nanoseconds, std::memory_order_relaxed);
    step_.store(waits.step, std::memory_order_release);
  }
  inline StepWaits load() const {
    const std::int64_t step = step_.load(std::memory_order_acquire);
    return {step, step < 0 ? 0 : nanoseconds_[step & 1].load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<std::int64_t> step_{-1};
  std::atomic<std::int64_t> nanoseconds_[2] = {};
};

/// A rank's entry in the shared memory.
struct alignas(64) RankRecord {
  static constexpr std::uint64_t kept_calls = 64;

  std::atomic<std::int32_t> process{0};
  std::atomic<std::uint64_t> process_start{0};  ///< see Process
  std::atomic<std::uint32_t> ended{0};
  std::atomic<std::int32_t> waiting_for{-1};  ///< the rank for which this one waits; -1: none
  std::atomic<std::int64_t> step{-1};
  SharedText<12> where;
  ReportedWaits waits;
  std::atomic<std::uint64_t> recorded{0};
  RecordedCall calls[kept_calls];
};

/// The start of a region: what all ranks share besides the data.
struct Control {
  static constexpr std::uint64_t expected_magic = 0x7465737365726132;

  std::uint64_t magic = 0;
  std::uint32_t size = 0;
  std::uint32_t joined = 0;  ///< 1: another program started the ranks, nobody watches them
  std::uint64_t region_bytes = 0;

  std::atomic<std::uint32_t> failed{0};  ///< 0 no, 1 being written, 2 written
  std::atomic<std::int32_t> failed_rank{-1};
  std::atomic<std::uint32_t> failed_kind{0};
  std::atomic<std::uint32_t> failed_in_calls{0};  ///< whether the ranks' last calls explain it
  std::atomic<std::int64_t> failed_step{-1};
  SharedText<12> failed_where;
  SharedText<1024> failed_text;
  std::atomic<std::int32_t> gone{-1};              ///< a rank that has died; -1: none is known
  std::atomic<std::uint32_t> failed_elsewhere{0};  ///< 1: another machine told it
  std::atomic<std::uint32_t> printed{0};           ///< 1: a rank prints the error or has printed it
  std::atomic<std::uint32_t> boxed{0};             ///< 1: the last calls are written to a file
  std::atomic<std::uint32_t> interrupts{0};        ///< not 0: the ranks are asked to stop
  std::atomic<std::int32_t> wait_reporter{-1};     ///< the rank whose long wait has been reported

  SharedLock lock;  ///< guards extents and the making of groups
  std::atomic<std::uint64_t> first_group{0};
  ExtentTable extents;

  inline RankRecord* ranks() {
    return reinterpret_cast<RankRecord*>(reinterpret_cast<std::byte*>(this) + ranks_offset());
  }
  static inline std::size_t ranks_offset() { return (sizeof(Control) + 63) / 64 * 64; }
  /// Lays out a fresh region for `size` ranks. All memory after the records is free. Error
  /// (input): the records do not fit.
  static Control* create(Region& region, int size);

  bool publish_error(int rank, std::string_view text, ErrorKind kind, bool about_calls = false);
  /// The first error of another machine becomes this one's, unless there is one.
  void take_error(const FirstError& error, bool about_calls);
  FirstError first_error() const;
  /// The last calls of a rank of this machine, at most so many, the oldest first.
  std::vector<FlightRecord> kept_calls(const Region& region, int rank, std::uint64_t most);
  /// The flight recorder, one call per line.
  std::string recent_calls(const Region& region, int calls_per_rank);
  /// "rank 2 (step 7, saving a checkpoint)".
  std::string describe_rank(int rank);
  /// "barrier(), call 11 of group [0, 1]", or "no call yet".
  std::string last_call(const Region& region, int rank);
};

/// A group of ranks in shared memory; `members` Member blocks follow.
struct GroupBlock {
  std::uint64_t next = 0;
  std::uint32_t size = 0;
  std::uint32_t name_bytes = 0;
  char name[64] = {};
  std::uint64_t members = 0;

  inline std::int32_t* ranks() { return reinterpret_cast<std::int32_t*>(this + 1); }
};

/// The group of these ranks and this name in the region; null: nobody has made it yet.
GroupBlock* find_group(Region& region, std::span<const int> ranks, std::string_view name);
/// Finds the block, or makes it where there is none: `fake` without members. Null: no room. The
/// caller holds the lock of extents and groups.
GroupBlock* find_or_make_group(Region& region, std::span<const int> ranks, std::string_view name,
                               bool fake);

/// "[0, 1]", after the name if it has one.
std::string describe_group(GroupBlock& group);

}  // namespace tessera::collective
