export module tessera.runs:record_keeper;

import tessera.base;
import tessera.tensor;
import :ledger;
import :metrics;
import :record;
import :training_run;

// Who keeps the record of a run while it trains: rank 0.

export namespace tessera::runs {

/// What a record says of this machine and this program, whose hash is taken.
Sitting sitting_here();
/// The same of a start, before its ranks are started.
Sitting sitting_of(const Run& run);

/// The record of a run that is training.
class RecordKeeper {
 public:
  explicit RecordKeeper(Sitting now) : now_(std::move(now)) {}

  /// Goes on with the record of the state that the run continues (""; it has none), after `done`
  /// steps. A damaged one, and one of other steps, is left out, and the record begins here: returns
  /// what to tell of it, "" where there is nothing.
  std::string continue_from(const std::string& text, std::int64_t done);
  /// After each step.
  void step(const StepMetrics& metrics);
  /// For the state after `done` steps. `ledger`: of rank 0 since the start.
  std::string text(std::int64_t done, const TimeBook& ledger);

 private:
  RunRecord before_;  // its sittings are those before this one
  Sitting now_;
};

}  // namespace tessera::runs
