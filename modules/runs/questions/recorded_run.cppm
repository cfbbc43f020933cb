export module tessera.runs:recorded_run;

import tessera.base;
import :data_task;
import :exclusions;
import :fingerprint;
import :metrics;
import :spec;
import :training_run;

export namespace tessera::runs {

/// A run that has saved checkpoints, as they describe it. What it writes is no part of it: nothing
/// that is asked of it is written to its folders.
struct RecordedRun {
  /// A checkpoint of a run.
  struct Checkpoint {
    std::int64_t step = 0;  // that is done
    std::string path = {};
  };

  std::string folder;                  // of its checkpoints
  std::vector<Checkpoint> saved = {};  // by steps
  RunSpec spec = {};                   // without outputs
  std::string metrics = {};            // its metrics file; empty: none
  Fingerprint fingerprint = {};
  Exclusions excluded = {};  // rows, as the last checkpoint has them
  std::string files = "[]";  // those of the data, as JSON (record_members)
};

/// The checkpoints in the folder of a run, or the one that it is, by steps. Error (input): there is
/// none.
std::vector<RecordedRun::Checkpoint> saved_checkpoints(const std::string& folder);
/// The one that has the description by which a step was taken: the first one that was saved after
/// it; 0, and a step that is not in any: the last one.
const RecordedRun::Checkpoint& describing_checkpoint(
    const std::vector<RecordedRun::Checkpoint>& saved, std::int64_t step);

/// The run whose checkpoints are in a folder, or whose one checkpoint it is. Its plugins are made
/// known, and those of `plugins` (files or folders). Errors (input): there is no checkpoint; the
/// newest one cannot be read, is not of 'tessera train', or of a version with other keys; a plugin
/// is gone.
/// `step`: the run as it was when it took that step, as it may have been continued with another
/// description since; 0: as it is now. `layout`: the config by whose layout it will be computed,
/// whose plugins are known already and are used instead of the run's; null: its own.
RecordedRun open_recorded(const std::string& folder, const std::vector<std::string>& plugins = {},
                          std::int64_t step = 0, const RunSpec* layout = nullptr);

/// Opens its data and its model's sizes; its plugins are loaded. Errors (input): a file of the data
/// has changed since (by the hash of all of them; the text names the file), is gone, or another
/// thing that the run reads is not as it was.
std::shared_ptr<const DataTask> open_task(const RecordedRun& run);

/// Error (input): the run has no such step (from 1).
void check_step(const RecordedRun& run, std::int64_t step);
/// The newest checkpoint from which a step can be computed. Error (input): there is none before it.
const RecordedRun::Checkpoint& checkpoint_before(const RecordedRun& run, std::int64_t step);
/// What its metrics file has of a step; nothing: it has none of it.
std::optional<StepMetrics> recorded_metrics(const RecordedRun& run, std::int64_t step);

}  // namespace tessera::runs
