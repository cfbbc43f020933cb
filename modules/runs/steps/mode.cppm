export module tessera.runs:mode;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
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
import :spec;

// Modes of data parallelism: the step of one rank is captured, and placed on the mesh.

export namespace tessera::runs {

/// Captured on the meta device. Errors (input): see capture_step; the host reads values within the
/// step.
std::shared_ptr<const OneRank> capture_one_rank(const Run& run);

/// By the name of what has it.
using Layouts = std::map<std::string, Layout>;

/// The layouts that the mode gives the parameters, by the names of the program's inputs. Errors
/// (input): see graph::data_parallel.
Layouts parameter_layouts(const Run& run, const OneRank& one_rank);

/// Layouts of the optimizer's state, by the names of the program's inputs.
Layouts state_layouts(optim::Optimizer& optimizer);

/// Placed on the run's mesh by its mode, above distribution, as the calling rank. `layouts`: of
/// parameters and the optimizer's state, by the names of inputs. Errors (input): see
/// graph::data_parallel.
OneRank placed_on_mesh(const Run& run, const OneRank& one_rank, const Layouts& layouts);

/// Entries that the plan of a run applies: those of the config, or, with graph.mode, one that
/// splits the batch along all axes and gives the parameters these layouts.
std::vector<parallel::StyleEntry> plan_entries(const RunSpec& config, const Layouts& layouts);

/// Adds to the account of a step, of which modes below distribution have seen the calls, what its
/// program says of communication and memory.
void add_program(Account& account, const Program& program, const DeviceMesh& mesh);

/// "fully_shard: 38 parameters are sharded, 5 replicated", for the table.
std::string mode_text(const RunSpec& config, const Layouts& layouts);

}  // namespace tessera::runs
