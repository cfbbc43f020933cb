export module tessera.app.tools:plan;

import tessera.app.base;
import tessera.app.commands;

export namespace tessera::app {

/// `tessera plan`: a step in time, on ranks that need not be there. Errors as of run_train; the
/// mesh does not divide the number of ranks; those of Planner, failing_run, search_layouts and
/// read_trace; a step that cannot be captured; options of a search without one, and the other way
/// round.
int run_plan(const TrainArguments& arguments, const PlanArguments& planned);

}  // namespace tessera::app
