// Ranks as processes of this launcher: how they ended, whether they are stopped or do not move.
module tessera.launch:rank_processes;

import tessera.base;
import tessera.ranks;

namespace tessera::collective {

/// The forked ranks, and what the launcher knows about them.
class RankProcesses {
 public:
  /// `first`: the number of the first of them.
  RankProcesses(Control& control, Region& region, int first)
      : control_(control), region_(region), first_(first) {}

  void add(int process);
  bool any_alive() const;
  void kill_all() const;
  int code() const { return code_; }
  /// Whether the run has failed because one of them was killed, other than by a fault of its own,
  /// or did not move.
  bool failed_from_outside() const { return from_outside_; }

  /// Takes the processes that have ended; one that died fails the run. Notes which are stopped.
  void reap(bool killed_by_parent);
  /// A rank that is stopped while nobody waits for it is reported by this process.
  void report_stopped(double after);
  /// A rank that has shown no sign of life for so long fails the run, and is killed. A rank that
  /// waits for another one is not at fault, unless it is stopped; one that computes is alive.
  void end_stuck(double after);

 private:
  /// What changes while a rank computes or communicates.
  struct Signs {
    double processor_seconds = -1;
    std::uint64_t calls = 0;
    std::int64_t step = -1;
    friend bool operator==(const Signs&, const Signs&) = default;
  };
  struct LastSigns {
    Signs signs;
    Stopwatch since;  // they have changed
  };

  int number(std::size_t rank) const { return first_ + static_cast<int>(rank); }
  /// " at step 7 in training"; as much of it as is known.
  std::string place_of(std::size_t rank) const;
  void note_end(std::size_t rank, int status, bool killed_by_parent);

  std::vector<int> processes_;  // 0 once it has ended
  std::vector<std::optional<Stopwatch>> stopped_;
  std::vector<LastSigns> lives_;
  Control& control_;
  Region& region_;
  int first_;
  int code_ = 0;
  bool from_outside_ = false;
};

}  // namespace tessera::collective
