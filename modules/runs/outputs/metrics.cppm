export module tessera.runs:metrics;

import tessera.base;
import :ledger;

// The metrics file: one JSON object per line, one line per step.

export namespace tessera::runs {

/// What an objective measures besides its loss, by name, in the order of reports.
using Measures = std::vector<std::pair<std::string, double>>;

/// A validation.
struct Validation {
  double loss = 0;
  Measures measures = {};
};

/// The metrics of one step. Steps are counted from 1 here: the number of updates made.
struct StepMetrics {
  std::int64_t step = 0;
  double loss = 0;       // mean over the step's tokens, before the update
  double grad_norm = 0;  // global, before clipping
  double lr = 0;
  bool skipped = false;  // the gradients were not finite or it was a spike; nothing was updated
  bool spike = false;    // see train.on_spike
  std::int64_t excluded_rows = 0;  // that are left out from this step on, or before
  double tokens_per_second = 0;
  double seconds = 0;       // of this step, without validation and checkpoints
  double save_seconds = 0;  // that the save after the step before has held the run up
  /// The rank for which the others have waited most in the steps before, and the seconds of a step.
  std::optional<std::pair<int, double>> waited_for = {};
  std::uint64_t memory_bytes = 0;  // of the rank that writes
  /// Peaks of what its tensors hold, since the first step: by category, and "total".
  std::vector<std::pair<std::string, std::int64_t>> memory_peaks = {};
  Measures measures = {};
  /// The tokens of each expert of a mixture, by the mixture's name.
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> expert_tokens = {};
  /// What rank 0 has booked since the step before, and from the start on what each rank has (after
  /// steps that are validated; otherwise empty).
  TimeBook ledger = {};
  std::vector<TimeBook> ledger_ranks = {};
  std::optional<double> validation_loss;
  Measures validation_measures = {};
  /// Whose step it is: see metrics_owner.
  std::optional<std::string> checkpoints;
};

/// The line's text, without the end of line. Numbers round-trip; NaN and infinities are null.
std::string to_json(const StepMetrics& metrics);

/// The scalars that are told to people and TensorBoard, by the names that the line has for them.
Measures scalars_of(const StepMetrics& metrics);

/// The lines of a metrics file, as to_json writes them, without measures; NaN for null. A last line
/// that is not complete is left out. Error (input): there is no such file, or it is not a metrics
/// file.
std::vector<StepMetrics> read_metrics(const std::filesystem::path& file);

/// Identity of a run among those that could write one metrics file: the folder of their
/// checkpoints, relative to the file's, so that both may be moved together. "": a run without
/// checkpoints.
std::string metrics_owner(const std::filesystem::path& file, const std::string& checkpoints);

/// The last step that the file has; 0: none. Error (input) that begins with `where`: the file is of
/// another run than `owner`'s, or not a metrics file; starting the run would lose what it holds.
std::int64_t check_metrics(const std::string& where, const std::filesystem::path& file,
                           const std::string& owner);

/// Writes a metrics file where it is: links stay links, and a file that is there keeps its mode. It
/// can also be a pipe that somebody reads, a device or a standard stream.
class MetricsWriter {
 public:
  /// Opens the file and creates its folders. `resumed_step` > 0 keeps the lines of steps up to it
  /// and drops later and incomplete ones, so that no step occurs twice; 0 starts an empty file. A
  /// stream keeps all that it has. Error (input): the file cannot be written, nobody reads a pipe.
  MetricsWriter(std::filesystem::path file, std::int64_t resumed_step);
  MetricsWriter(MetricsWriter&&) = delete;
  ~MetricsWriter();
  /// Appends a line; never waits for a reader. Readers of a file see whole lines only, also after a
  /// kill. A file that was removed, moved or replaced meanwhile is noticed with a warning: the run
  /// writes what was removed or moved again under its name, and adds to what replaced it. Error:
  /// the line cannot be written now, and is with the next one; or the folder is no longer where it
  /// was, and the lines are where it is now.
  void write(const StepMetrics& metrics);
  /// Gives the reader of a pipe a few seconds for what is left. Error: lines are left.
  void finish();

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::runs
