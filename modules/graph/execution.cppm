export module tessera.graph:execution;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.execute;
import tessera.passes;
import :across_steps;

export namespace tessera::graph {

/// How programs are executed.
struct ExecutionOptions {
  std::string executor = "planned";
  /// Of the executors planned and compiled: see PlannedExecutor. `kind`: of the device on which
  /// steps run.
  bool device_graphs = false;
  DeviceType kind = DeviceType::cpu;
  /// Passes that improve the program before it is executed, in this order; see run_passes.
  std::vector<std::string> passes = {};
  /// Bytes that a step may need at once; 0: any. After the passes that end lifetimes the program is
  /// fitted; see fit_memory.
  std::int64_t memory_budget = 0;
  /// With a budget and a pass that keeps memory to spare communication (Change::keeps): how many
  /// calls it spares, the same number on all ranks; -1: as many as this rank's program has room
  /// for, which a rank must not decide alone.
  int kept_gathers = -1;
  /// Where values may be kept between two uses to keep the budget, if that costs less than to
  /// compute them again; null: nowhere.
  std::shared_ptr<MemoryPlace> elsewhere = nullptr;
  /// Costs of computing, where `elsewhere` is given. All ranks must have the same numbers with a
  /// pass that keeps memory to spare communication.
  ComputeRates computing = {};
  OffloadRates offloading = {};
  /// Changes of the step, after all of this. Modules that they replace are replaced before the
  /// capture, by whoever makes the model (see replace_modules).
  std::vector<Change> transforms = {};
  /// Steps that are recorded as they are taken are recorded twice and compared, so a number that
  /// the host computes again in each step and that is not a Number is an error, not a constant.
  bool compares_recordings = false;
  /// Every so many replayed steps are also taken as they are written, from the same state, and
  /// compared bit by bit; see verified_every. 0: what the environment's TESSERA_GRAPH_VERIFY says.
  std::int64_t verify = 0;
  /// The program is captured and not executed, so anchors may be left in it.
  bool keeps_anchors = false;
  /// How ranks agree on changes of communication that passes propose. All ranks of the run capture
  /// the same steps and replay them alike then, as one that merged calls and one that did not would
  /// not fit together. Null: such passes change nothing.
  Agree agree = {};
  std::string dump = {};  // a folder; rank r's program before and after each pass is in rank-r
  /// The update of a step may be left to the next one; see AcrossSteps.
  bool across_steps = false;
};

/// Puts changes before those of the options, in their order. One without a function is the built-in
/// one or that of a plugin of its name. Errors (input): there is none; it replaces modules, which
/// are there already; a pass that is named comes after another change.
void add_changes(ExecutionOptions& options, std::span<const Change> changes);
/// The passes that run where nothing else is said.
std::vector<Change> default_changes();
/// The first change of what steps compute, for which each of them must be replayed; null: none.
const Change* changes_bits(const ExecutionOptions& options);

/// The options for a program that changes nothing, such as an evaluation: without changes,
/// which change steps, and without what belongs to a budget of memory.
ExecutionOptions without_changes(ExecutionOptions options);

/// "compiled" (PlannedExecutor, with compiled kernels), "interpreter" (Replay), "planned"
/// (PlannedExecutor).
std::vector<std::string> executor_names();
/// Errors (input): there is no executor or pass of this name; a change that another one must
/// precede.
void check(const ExecutionOptions& options);
/// Of how many replayed steps one is verified; 0: none is. The environment's number holds only
/// where steps can be taken as they are written.
std::int64_t verified_every(const ExecutionOptions& options);
/// Runs the options' other changes on an improved program. Errors: see run_change; the program
/// needs more than the budget of memory then; an anchor is left.
void transform(Program& program, const ExecutionOptions& options, AddedState& added);
/// Splits an improved and transformed program, and moves communication in each of the programs as
/// the options' passes do. Errors: see split_across_steps; one of them needs more than the budget
/// of memory.
AcrossSteps across_steps(const Program& program, const ExecutionOptions& options);
/// Kernels that the executor of the options compiles of the improved program, which ranks then find
/// in the cache; nothing where it compiles nothing. Kernels with which the step would need more
/// than the budget of memory are missing. Error: the compiler refuses an operator's Op::element.
std::optional<CompiledKernels> compile_kernels(const Program& program,
                                               const ExecutionOptions& options);
/// `added`: what changes have added to other programs of the same training; gets what they
/// add. Error (input): see check(). Errors: the program is another rank's; see run_change.
std::unique_ptr<Executor> make_executor(Program program, const ExecutionOptions& options = {},
                                        AddedState* added = nullptr);
/// The executor of a program that is to be executed as it is.
std::unique_ptr<Executor> executor_of(Program program, const ExecutionOptions& options);

}  // namespace tessera::graph
