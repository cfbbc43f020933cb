export module tessera.runs:replay;

import tessera.base;
import tessera.collective;
import :call_recorder;
import :recorded_run;
import :spec;
import :train;

// A step of a run that is computed again, and looked at.

export namespace tessera::runs {

/// What is looked at besides loss, norm and update.
struct ReplayRequest {
  std::int64_t step = 0;  // from 1
  bool rows = false;      // the loss of each row, and the tokens that lost most
  bool modules = false;   // the norms of each module's outputs and their gradients
  /// The calls of the step, and of those before it from RecordingRequest::first on.
  std::optional<RecordingRequest> record = {};
  /// From the beginning of the run instead of a checkpoint: of a run that has begun with step 1.
  bool from_beginning = false;
  std::string device = {};  // instead of train.device; empty: the run's own

  /// The first step that is looked at.
  std::int64_t first() const { return record && record->first > 0 ? record->first : step; }
};

/// A document of a row.
struct ReplayDocument {
  std::string place = {};  // "a.jsonl:17"
  std::int64_t begin = 0;  // [begin, end) of the row's tokens
  std::int64_t end = 0;
  std::int64_t trained = 0;
  double loss = 0;  // the sum of its tokens' losses
};

/// A row of the step.
struct ReplayRow {
  std::int64_t row = 0;  // of the step
  std::vector<ReplayDocument> documents = {};
  /// Tokens that are trained; 1 where the row has one loss, and not one for each token.
  std::int64_t trained = 0;
  double loss = 0;  // the sum of its losses
};

/// A token that lost much.
struct ReplayToken {
  std::int64_t row = 0;
  std::int64_t position = 0;  // of the row; it is predicted there
  std::string place = {};     // of its document
  std::int64_t token = 0;     // its id, or the number of a class
  std::string text = {};
  double loss = 0;
};

/// The 2-norms of a module's outputs and of their gradients, over the whole step and all ranks.
struct ReplayModule {
  std::string name = {};
  double activations = 0;
  std::optional<double> gradients = {};  // none: they have none
};

/// What the optimizer has changed of some parameters.
struct ReplayUpdate {
  std::string group = {};       // "optimizer.groups[0]", "others"
  std::int64_t parameters = 0;  // elements
  double before = 0;            // their 2-norm
  double change = 0;            // the norm of the difference
};

/// What a step is that was computed again.
struct ReplayStep {
  std::int64_t step = 0;
  std::string checkpoint = {};
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  bool skipped = false;
  std::optional<double> recorded_loss = {};
  std::optional<double> recorded_norm = {};
  /// Both are those that the run has recorded, in all bits.
  bool same() const;
  /// Whether the losses of the rows and the terms, added as the run adds them, are the loss in all
  /// bits; none: rows were not looked at.
  std::optional<bool> rows_are_loss = {};
  std::map<std::string, double> terms = {};  // sums beside those of the rows, by their names
  std::vector<ReplayRow> rows = {};          // those with the largest mean loss of a token first
  std::vector<ReplayToken> tokens = {};
  std::vector<ReplayModule> modules = {};  // in the order of the model
  std::vector<ReplayUpdate> updates = {};
  std::string note = {};  // what could not be looked at, and why
};

/// The run as it is replayed before a step: from the newest checkpoint before it, by its own layout
/// or that of `layout` (sections mesh, parallel and plugins, train.micro_batch, threads and
/// device). `scratch`: a folder for what steps keep in files. Errors (input): see open_task,
/// checkpoint_before and check_start; another layout for a run whose bits depend on it, unless its
/// calls are recorded, which says how far the bits differ; `layout` is of another run.
OpenedRun open_replay(const RecordedRun& run, const ReplayRequest& request,
                      const std::optional<RunSpec>& layout, const std::string& scratch);

/// Computes the steps up to that of the request, and tells of it; a JSON on rank 0, else empty. All
/// ranks call it (launch_options).
std::string replay_rank(const OpenedRun& opened, const ReplayRequest& request,
                        collective::World& world);

/// Writes the rows of the steps that are recorded into the recording: of each its place and the
/// hash of its tokens. Error (input): the file cannot be written.
void record_rows(const OpenedRun& opened, const ReplayRequest& request);

/// What that JSON says, with what the run has recorded.
ReplayStep replayed_step(const std::string& json, const RecordedRun& run, const OpenedRun& opened);

}  // namespace tessera::runs
