export module tessera.runs:verify;

import tessera.base;
import tessera.collective;
import :export_record;
import :fingerprint;
import :run_record;
import :recorded_run;
import :spec;
import :train;

// A run that is repeated from its record, and compared bit by bit.

export namespace tessera::runs {

/// What is asked.
struct VerifyRequest {
  std::string folder;                     // of a run, of its checkpoints, a checkpoint, an export
  std::vector<std::string> plugins = {};  // files or folders
  std::int64_t first = 0;                 // steps [first, last], from 1; both 0: all
  std::int64_t last = 0;
  std::string seen_from = {};          // where relative paths of an export are; empty: here
  std::optional<RunSpec> layout = {};  // see open_replay
};

/// Steps that one description takes, from one state on.
struct VerifySegment {
  std::int64_t from = 0;        // steps that are done
  std::string checkpoint = {};  // of the run, that has them; empty: the segment before saves them
  std::int64_t to = 0;
  RunSpec spec = {};  // without outputs
  Fingerprint fingerprint = {};
  std::string mesh = {};  // by which the run has taken them
};

/// A checkpoint of the run, or the export's, that the repeated one must be.
struct VerifyTarget {
  std::int64_t step = 0;
  std::string path = {};     // of the checkpoint; empty: the export's
  std::string weights = {};  // stored_hash of the model, where the export says it
};

/// Where a number is recorded.
struct RecordedNumbers {
  std::string where = {};  // "the record", or the metrics file
  std::vector<CurvePoint> points = {};
};

/// What will be computed, and what it is compared with.
struct VerifyPlan {
  RecordedRun run = {};
  RunRecord record = {};
  std::optional<ExportRecord> exported = {};
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::vector<VerifySegment> segments = {};
  std::vector<VerifyTarget> targets = {};
  std::vector<RecordedNumbers> numbers = {};
  std::vector<std::string> notes = {};  // what is not as it was, and need not be
};

/// Reads the record. Nothing is computed yet. Errors (input), each with what is missing: there is
/// no checkpoint and no record.json; a record that is damaged; steps beyond the end, or that are
/// not between checkpoints; sessions that were left out; a plugin that is gone; another layout for
/// a run whose bits depend on its own.
VerifyPlan plan_verification(const VerifyRequest& request);

/// A segment as a run that writes nothing. `scratch`: for what steps keep in files. Errors (input):
/// see open_task, check_run, check_start; a value that determines the curve is not as recorded.
OpenedRun open_segment(const VerifyPlan& plan, const VerifySegment& segment,
                       const std::string& scratch);

/// Plugins that this process has loaded since, and that are others than those of the run.
std::vector<std::string> plugin_notes(const VerifyPlan& plan);

/// Takes its steps, and saves the checkpoints of targets as SCRATCH/step-N. The numbers of its
/// steps as JSON on rank 0, else empty. All ranks call it (launch_options).
std::string verify_rank(const VerifyPlan& plan, const VerifySegment& segment,
                        const OpenedRun& opened, const std::string& scratch,
                        collective::World& world);

/// Something that is not as it was recorded.
struct VerifyDifference {
  std::string what;  // "loss in the record", "step-00000010", "model.safetensors"
  std::int64_t step = 0;
  std::string expected = {};
  std::string got = {};
};

/// What was compared.
struct Verdict {
  std::vector<VerifyDifference> differences = {};  // by steps
  std::int64_t numbers = 0;                        // of the curve
  /// Checkpoints, with the hash of the model's tensors as they were computed again.
  std::vector<std::pair<std::int64_t, std::string>> checkpoints = {};
  std::int64_t files = 0;  // of an export

  bool same() const { return differences.empty(); }
};

/// Adds what the numbers of a segment say (verify_rank).
void compare_numbers(const VerifyPlan& plan, const VerifySegment& segment, const std::string& json,
                     Verdict& verdict);
/// Adds what the checkpoints in SCRATCH say, and after the last step of an export whether its files
/// are as recorded.
void compare_checkpoints(const VerifyPlan& plan, const std::string& scratch, Verdict& verdict);
/// Adds whether the files of an export are those that were exported again into a folder.
void compare_exports(const VerifyPlan& plan, const std::string& folder, const std::string& again,
                     Verdict& verdict);

}  // namespace tessera::runs
