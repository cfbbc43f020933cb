export module tessera.runs:ledger;

import tessera.base;
import tessera.ranks;

// The ledger of a run: each second of a rank is booked on one use of time.

export namespace tessera::runs {

/// What a rank does with its time.
enum class TimeUse : std::uint8_t {
  start,          // until the first step: checks, the model, what is continued
  data,           // rows are read
  capture,        // programs are made, and steps recorded as they are taken
  compute,        // the rest of steps and of what is done between them
  communication,  // waits in steps, as far as the rank that waits least has them too
  slow_ranks,     // longer waits in steps
  validation,
  save,      // checkpoints, states that are kept in memory, comparisons of copies
  heal,      // from the last step of ranks that died to the first step after them
  repeated,  // steps that had been taken before
  end,       // after the last step
};
constexpr std::size_t time_use_count = 11;
/// "start", "data", ..., "slow_ranks", ...
std::string_view word_of(TimeUse use);

/// Seconds by use.
struct TimeBook {
  std::array<double, time_use_count> seconds = {};

  double& operator[](TimeUse use) { return seconds[static_cast<std::size_t>(use)]; }
  double operator[](TimeUse use) const { return seconds[static_cast<std::size_t>(use)]; }
  double total() const;
  /// The share of all that is compute, from 0 to 1; 0 where there is no time.
  double goodput() const;
  TimeBook& operator+=(const TimeBook& other);
  friend TimeBook operator-(TimeBook a, const TimeBook& b) {
    for (std::size_t i = 0; i < time_use_count; ++i) {
      a.seconds[i] -= b.seconds[i];
    }
    return a;
  }
};

/// Seconds of a clock that all processes of a machine have alike, and that is never set.
double steady_seconds();

/// The time of one rank, from one moment on. At each time it is booked on one use, so all uses
/// together are the time since then. For one thread.
class TimeLedger {
 public:
  /// Books on `use` from the time `begun` on. `before`: what is booked already.
  TimeLedger(double begun, TimeUse use, const TimeBook& before = {},
             std::function<double()> clock = steady_seconds);

  /// Books on this use from now on. Returns the one before.
  TimeUse enter(TimeUse use);
  /// Books so many of the seconds on another use, at most those that `from` has got since `since`.
  /// Returns how many.
  double move(TimeUse from, TimeUse to, double seconds, const TimeBook& since);
  /// Everything that was booked since `since` becomes `to`.
  void move_all(TimeUse to, const TimeBook& since);
  /// What is booked until now.
  TimeBook book();

 private:
  void settle();

  std::function<double()> clock_;
  TimeBook book_;
  TimeUse use_;
  double settled_;
};

/// Books on a use as long as it lives, and then on the one before. `ledger` null: on none.
class TimeScope {
 public:
  TimeScope(TimeLedger* ledger, TimeUse use);
  TimeScope(const TimeScope&) = delete;
  TimeScope& operator=(const TimeScope&) = delete;
  ~TimeScope();

 private:
  TimeLedger* ledger_;
  TimeUse before_ = TimeUse::compute;
};

/// What the ranks of a machine have booked, in memory that outlives them.
class TimeBoard {
 public:
  struct Entry {
    double time = 0;        // of steady_seconds(); 0: the rank has written nothing
    std::int64_t step = 0;  // the last one that it has taken
    TimeBook book = {};
  };
  /// For so many ranks; before they are started. Error (run): there is no memory.
  explicit TimeBoard(int ranks);

  /// Each rank its own; whoever reads it, also after the rank was killed while it wrote, gets one
  /// that was whole.
  void put(int rank, const Entry& entry);
  Entry get(int rank) const;

 private:
  struct Slot;
  Slot& slot(int rank) const;

  std::shared_ptr<collective::Region> memory_;
};

/// What became of the time of a run's ranks, a line each: all ranks together, and a table of the
/// ranks, of which, where they are many, only the two are shown that compute most and least.
std::vector<std::string> ledger_lines(std::span<const TimeBook> ranks);

}  // namespace tessera::runs
