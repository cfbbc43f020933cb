export module tessera.runs:start;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.train;
import :training_run;
import :exclusions;
import :spec;

// Checks of a run before it starts: where it writes, and what it continues.

export namespace tessera::runs {

/// Error (input): a folder or file that the run will write cannot be written. Creates nothing.
void check_outputs(const RunSpec& config);
/// The key that says which checkpoint a run continues.
std::string resume_key(const RunSpec& config);

/// The checkpoint that the run continues; nothing for a new run. Error (input): the newest one
/// cannot be read.
std::optional<std::string> checkpoint_to_resume(const RunSpec& config);

/// What the checkpoint that the run continues says of its rows; of a new run, and where it cannot
/// be read (check_stored tells that): nothing.
ContinuedRows rows_to_continue(const RunSpec& config);

/// The folder of checkpoints must be this run's alone: what it holds besides would be mixed with
/// what is saved, removed as old, or continued by the next start. Error (input): it holds others.
void check_folder(const RunSpec& config, const StartPoint& start);

/// All ranks must do the same run from the same point: ranks that another launcher started have
/// each read the config, the text and the checkpoints for themselves. Every rank calls it; the
/// Error (input) names one that differs.
void compare_runs(collective::World& world, const Run& run, const StartPoint& start);

}  // namespace tessera::runs
