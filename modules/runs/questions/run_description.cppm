export module tessera.runs:run_description;

import tessera.base;
import :fingerprint;
import :recorded_run;

// What two runs say of themselves, without opening them: plugins and data stay closed.

export namespace tessera::runs {

/// A run as one of its checkpoints describes it.
struct RunDescription {
  std::string folder = {};
  std::vector<RecordedRun::Checkpoint> saved = {};  // by steps
  Fingerprint fingerprint = {};
  std::string config = "{}";  // as JSON
  std::string metrics = {};   // its metrics file; empty: none
  std::int64_t steps = 0;

  /// A value of the config as JSON: "mesh.shape"; "null": the config has none.
  std::string value(const std::string& key) const;
};

/// The description by which a run took a step (0: its last one); see open_recorded. Errors (input):
/// there is no checkpoint; it cannot be read, or is not of 'tessera train'.
RunDescription describe_run(const std::string& folder, std::int64_t step = 0);

/// Error (input): the runs are not of one config. The text names the keys that differ; where they
/// are of the model, it says so. Data may differ: their rows are compared.
void check_one_config(const RunDescription& first, const RunDescription& second);

/// Whether the ranks of both execute the same operators on the same shapes.
bool same_layout(const RunDescription& first, const RunDescription& second);

/// A number that two runs have recorded of one step.
struct DifferingStep {
  std::int64_t step = 0;
  std::string what = {};  // "loss", "gradient norm", "learning rate"
  double first = 0;
  double second = 0;
};

/// What came of comparing the metrics files of two runs.
struct MetricsComparison {
  std::int64_t compared = 0;                // steps that both have, up to the first difference
  bool from_beginning = false;              // both have step 1
  std::optional<DifferingStep> first = {};  // none: all are the same
};
/// `tolerance`: numbers differ that are further apart than this part of the larger one; 0: whose
/// bits differ. Errors (input): a run has no metrics file; they have no step in common.
MetricsComparison compare_metrics(const RunDescription& first, const RunDescription& second,
                                  double tolerance);

}  // namespace tessera::runs
