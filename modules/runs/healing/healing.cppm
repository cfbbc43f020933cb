export module tessera.runs:healing;

import tessera.base;
import tessera.collective;
import tessera.checkpoint;
import :ledger;
import :training_run;
import :spec;

export namespace tessera::runs {

/// Error (input): the run cannot heal, as another program has started its ranks.
void check_healing(const RunSpec& config);

/// Whether what the ranks of a machine keep is in the memory of another one too (train.heal_copies,
/// on several machines).
bool has_second_home(const Run& run);

/// Copies of a rank's state that are in memory besides the state itself: two of them, each in as
/// many places. 0: the run does not heal.
int kept_copies(const Run& run);

/// How a run continues when a rank has died (train.heal): the launcher's part. It never computes;
/// it has the memory in which the ranks keep the state, and decides from where new ranks continue.
/// On several machines it also has a copy of what the ranks of the machine before this one keep.
class Healing {
 public:
  /// The run and `start`, whose `kept` is set, must outlive it.
  Healing(const Run& run, StartPoint& start);
  Healing(Healing&&) = delete;

  /// Sets what a launch needs.
  void configure(collective::LaunchOptions& options);

 private:
  /// See LaunchOptions::restart. Sets where the run continues.
  bool start_again(const collective::FailedAttempt& failed);
  /// Why it may not; empty: it may.
  std::string refusal(const collective::FailedAttempt& failed);
  /// Where the ranks continue, as words. `kept`: the step that is in memory; -1: none.
  std::string find_start(std::int64_t kept);

  const RunSpec& config_;
  StartPoint& start_;
  MemoryStateStore kept_;
  TimeBoard board_;
  std::optional<MemoryStateStore> of_other_;
  std::vector<double> times_;                  // of the starts within the last hour, in seconds
  std::optional<std::int64_t> step_of_fault_;  // of the last failure that was not from outside
};

}  // namespace tessera::runs
