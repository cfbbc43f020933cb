export module tessera.runs:train;

import tessera.base;
import tessera.collective;
import :spec;
import :facts;
import :ledger;
import :run_lock;
import :own_task;
import :task;
import :training_run;

// A run from its description to its last step, as `tessera train` does it.

export namespace tessera::runs {

/// A run whose files are open and whose parts are checked, in this order: open_run, check_run,
/// check_start; train starts its ranks.
struct OpenedRun {
  Run run = {};
  Facts facts = {};
  StartPoint start = {};
  double begun = steady_seconds();
  bool first = true;  // of the processes that another program started: the one that prints
  // Nothing is looked at that another run may be changing, and nothing is written, without it.
  std::unique_ptr<RunLock> lock = {};
};

/// Opens the model's sizes and the data; steps that follow from epochs are computed. `writes`: the
/// run is to be trained, and has what it writes to itself. Errors (input), each with the key: a
/// folder or file that it would write cannot be; see model_shape and Dataset.
OpenedRun open_run(RunSpec spec, bool writes);
/// The same of a program's own task. Errors (input): what the run would write cannot be.
OpenedRun open_run(RunSpec spec, std::shared_ptr<const Task> task, bool writes);
/// Errors: see facts_of.
void check_run(OpenedRun& opened);
/// Compares the run with what it begins with, and with what its outputs hold. `weight_values`: see
/// check_stored. Errors (input), each with the key.
void check_start(OpenedRun& opened, bool weight_values);

/// How the ranks of a checked run are started.
collective::LaunchOptions launch_options(const OpenedRun& opened);

/// Starts the ranks, or takes part where another launcher has started them, and returns the exit
/// code: 0; incomplete_code; that of an interrupt; that of an error, which was printed. Call it
/// before any thread exists.
int train(OpenedRun& opened);

/// The whole of it, for a program that describes its run itself: plugins are loaded, the
/// description is checked, the ranks are started, the newest checkpoint is continued, and rank 0
/// prints its progress. Returns the exit code of main; an error is printed once. Call it before
/// any thread exists.
int train(RunSpec spec);
/// The same of a program's own model, rows and loss. Keys of [model], [data] and [dpo] have no
/// meaning there but data.validate_every; what else is set is an error that names the field.
int train(RunSpec spec, const TaskFunctions& functions);

}  // namespace tessera::runs
