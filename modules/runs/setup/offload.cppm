export module tessera.runs:offload;

import tessera.base;
import tessera.tensor;
import :rates;
import :spec;

// Values of captured steps that are kept in a file (graph.offload).

export namespace tessera::runs {

/// Where a step's values may be kept: a file of this process in the folder, as the style Offload
/// has one; null where none is asked for. The file is made when it is first used. Errors (input):
/// the folder cannot be written in; the plugin is missing.
std::shared_ptr<MemoryPlace> memory_elsewhere(const GraphConfig& graph);

/// Costs of a fitted step on this machine, for the plan of all ranks; the defaults where nothing
/// is offloaded, or where another launcher's processes would each measure something else. Before
/// the ranks start. Errors: those of the folder.
StepRates rates_of(const RunSpec& config);

/// Error (input): the folder has less space than the ranks of this machine need, of which each
/// needs `bytes`.
void check_space_elsewhere(const RunSpec& config, std::int64_t bytes);

}  // namespace tessera::runs
