export module tessera.runs:record_writer;

import tessera.base;
import tessera.tensor;
import :ledger;
import :metrics;
import :run_record;
import :training_run;

// Who keeps the record of a run while it trains: rank 0.

export namespace tessera::runs {

/// What a record says of this machine and this program, whose hash is taken.
Session session_here();
/// The same of a start, before its ranks are started.
Session session_of(const Run& run);

/// The record of a run that is training.
class RecordWriter {
 public:
  explicit RecordWriter(Session now) : now_(std::move(now)) {}

  /// Goes on with the record of the state that the run continues (""; it has none), after `done`
  /// steps. A damaged one, and one of other steps, is left out, and the record begins here: returns
  /// what to tell of it, "" where there is nothing.
  std::string continue_from(const std::string& text, std::int64_t done);
  /// What rank 0 had booked at the state that continue_from() was given, in this start of the run.
  const TimeBook& saved_ledger() const { return now_.ledger; }
  /// After each step.
  void step(const StepMetrics& metrics);
  /// For the state after `done` steps. `ledger`: of rank 0 since the start.
  std::string text(std::int64_t done, const TimeBook& ledger);

 private:
  RunRecord before_;  // its sessions are those before this one
  Session now_;
};

}  // namespace tessera::runs
