export module tessera.execute:planned_executor;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :executor;
import :memory_plan;

export namespace tessera::graph {

/// Memory of a planned program besides its inputs.
struct PlannedMemory {
  std::int64_t block_bytes = 0;  // one block, in which memories take turns
  std::int64_t least_bytes = 0;  // the most that is needed in it at once
  int in_block = 0;              // memories
  /// Memories that are allocated in each step, because other ranks may read them after it, or they
  /// are elsewhere.
  int allocated = 0;
};

/// What a device's graphs have of a program (see docs/graph-executors.md, "Graphs of a device").
struct PlannedGraphs {
  int graphs = 0;  // that a step queues, one after the other
  int calls = 0;   // kernels, fills and copies in them
  /// Those that a step queues one by one, by the reason.
  std::map<std::string, int> alone = {};
};

/// Result of compiling the chains of a program (see docs/graph-kernels.md).
struct CompiledKernels {
  int kernels = 0;           // different functions
  int chains = 0;            // calls of them in a step
  int replaced = 0;          // calls of operators that these make
  std::string missing = {};  // why nothing is compiled; "": it is
};

/// Executes a program as a list of kernel calls: operands, results, attributes and workspace of
/// each call are fixed when the program is first run, in one block of memory. No call passes the
/// dispatcher, and only what other ranks may read after the step is allocated. The bits of Replay.
/// On a device (that of the inputs), the block is in its memory and the kernels are queued in the
/// thread's current stream. While modes are installed (a trace), and where the device lacks a
/// kernel, steps are those of Replay.
class PlannedExecutor final : public Executor {
 public:
  /// `compiled`: neighbouring elementwise operators become one kernel, compiled now, or, where
  /// `kind` is not the CPU, when a step first runs on such a device. `device_graphs`: on a device
  /// that has them, the second step records what is the same in each step as graphs, and later ones
  /// queue these.
  /// `elsewhere`: for values that the program keeps in other memory. Errors: the program is another
  /// rank's; the compiler refuses an operator's Op::element.
  explicit PlannedExecutor(Program program, bool compiled = false,
                           std::shared_ptr<MemoryPlace> elsewhere = nullptr,
                           bool device_graphs = false, DeviceType kind = DeviceType::cpu);
  ~PlannedExecutor() override;

  const Program& program() const override;
  void begin_in_order(std::span<const Tensor> inputs) override;
  void run(SectionKind section, const StepVariables& variables) override;
  const Tensor& output(const std::string& name) const override;
  void end() override;
  void release_memory() noexcept override;
  void abandon() noexcept override;

  /// Nothing until a step has begun that was planned.
  std::optional<PlannedMemory> memory() const;
  /// Nothing where compilation was not asked for.
  std::optional<CompiledKernels> compiled() const;
  /// Nothing until they are recorded.
  std::optional<PlannedGraphs> graphs() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::graph
