module tessera.execute:steps;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import :block;
import :chains;
import :compiled_chains;
import :executor;
import :host_fetches;
import :planned_executor;

namespace tessera::graph {

/// One instruction, ready to run.
struct PreparedInstruction {
  enum class Kind : std::uint8_t {
    kernel,  // into results that are there
    chain,   // several kernels as one loop
    call,    // through the dispatcher
    copy,    // of the operand's elements in row-major order
    create,  // memory for this step only
    fill,    // with the bytes of `constant`
    check,
    release,
    restore,
    nothing  // only drops
  };
  Kind kind = Kind::kernel;
  std::size_t instruction = 0;  // of its section
  const Instruction* source = nullptr;
  const std::string* part = nullptr;  // of the step (ProgramScope::part), which begins here
  DeviceKernel kernel = {};
  ChainIndex chain = {};
  bool bumps = false;      // the version of operand 0
  bool for_peers = false;  // other ranks read what it allocates
  bool across = false;     // it uses the host's memory, where the device has its own
  Device place = cpu;      // where it computes, if it does that
  std::vector<TensorIndex> in_numbers = {};
  std::vector<TensorIndex> out_numbers = {};
  std::vector<Tensor> in = {};
  std::vector<Tensor> out = {};
  std::vector<TensorIndex> allocated = {};  // results that get memory for this step only
  std::span<std::byte> workspace = {};
  Tensor constant = {};
  const MemoryPlaceCalls* place_calls = nullptr;  // null: it is asked for nothing
  std::vector<MemoryIndex> dropped = {};          // memories that nothing needs any more
};

/// In which memory a value is, where a device has its own.
enum class MemoryLocation : std::uint8_t { device, host, host_as_parameter };
/// `on_host`: of Program::inputs, in their order, those that are kept in the host's memory; empty:
/// none. Other values are where they are computed (see computes_on_host()).
ByMemory<MemoryLocation> memories_kept_in(const Program& program, const Shadow& shadow,
                                          const std::vector<bool>& on_host);
/// A call computes where it writes; else on the device, unless all that it reads is in the host's
/// memory and no parameter (a norm of gradients that are kept there).
bool computes_on_host(const Instruction& i, const Shadow& shadow,
                      const ByMemory<MemoryLocation>& kept);

/// Whether the device has a kernel for each operator that the program calls.
bool can_be_planned(const Program& program, Device device);

/// Steps that are the same each time, as graphs of a device: from the second run of a section on,
/// since the first one finds functions and algorithms, which a recording must not.
class StepGraphs {
 public:
  /// Steps [first, last) of a section.
  struct RecordedGraph {
    std::size_t first = 0;
    std::size_t last = 0;
    DeviceGraph graph = {};  // none: not recorded yet
  };
  using Sections = std::span<const std::vector<PreparedInstruction>>;

  StepGraphs(const Program& program, const Shadow& shadow, const Block& block,
             const CompiledChains* compiled);
  /// A section is about to run.
  void begin(Sections sections, std::size_t section);
  /// The graph that begins with this step; null: none.
  RecordedGraph* at(std::size_t section, std::size_t step);
  /// An input was given in other memory than before: it is in no graph any more.
  void leave_out(TensorIndex input);
  /// Nothing until a section has run twice.
  std::optional<PlannedGraphs> summary(Sections sections) const;

 private:
  /// Why a step cannot be in a graph; "": it can.
  std::string_view alone(const PreparedInstruction& step) const;
  bool is_the_same(TensorIndex number) const;

  const Shadow& shadow_;
  const Block& block_;
  const CompiledChains* compiled_;
  ByMemory<bool> changing_;  // inputs that are in other memory in each step
  std::vector<std::vector<RecordedGraph>> recorded_;  // by section
  std::vector<int> runs_;                             // of each section
};

/// A program as lists of steps on a device, in whose stream they are queued: what takes turns in
/// memory is in the stream's order, and what a collective uses is needed until the stream waits for
/// it.
class PreparedProgram {
 public:
  /// `compiled`: of the same program and device; null: none. `elsewhere`: null where the program
  /// keeps nothing in other memory. `on_host`: inputs that the host's memory has, where the device
  /// has its own (see memories_kept_in()); there are no chains then.
  PreparedProgram(const Program& program, Device device, CompiledChains* compiled,
                  MemoryPlace* elsewhere, std::vector<bool> on_host = {});

  using CheckInput =
      std::function<void(const std::string& name, TensorIndex number, const Tensor& x)>;
  /// `given`: in the order of Program::inputs. `check`: of those that are not the last step's.
  void begin(std::span<const Tensor> given, const CheckInput& check);
  /// Runs the section of `place`, which then says the instruction that is running, for errors.
  /// `at_part`: see Executor::watch_parts.
  void run(ProgramPlace& place, const std::function<Attributes(const Instruction&)>& bound,
           const std::function<void(const std::string& part)>& at_part);
  /// What is the same each time is queued as graphs of the device, which has some.
  void use_graphs() { graphs_.emplace(program_, shadow_, block_, compiled_); }
  /// Nothing until they are recorded.
  std::optional<PlannedGraphs> graphs() const {
    return graphs_ ? graphs_->summary(sections_) : std::nullopt;
  }
  /// Waits until nothing reads the host's memory any more.
  void wait_for_fetches();
  /// Drops what is not in the block; after an error also what is in progress.
  void end(bool failed) noexcept;
  /// Of the inputs, those that the host's memory has.
  const std::vector<bool>& on_host() const { return on_host_; }
  const Tensor& tensor(TensorIndex number) const { return tensors_[number]; }
  const ByTensor<Tensor>& tensors() const { return tensors_; }
  const PlannedMemory& memory() const { return memory_; }
  Device device() const { return device_; }

 private:
  using Bound = std::function<Attributes(const Instruction&)>;

  bool in_block(TensorIndex number) const;
  void make_tensors();
  void add_steps();
  void add_step(const Instruction& i, std::size_t at, PlaceIndex place);
  /// Where a call computes, and whether it uses memory of the host for it.
  void set_place(PreparedInstruction& step) const;
  /// `made`: those of `out` that the step makes.
  void add_operands(PreparedInstruction& step, std::span<const TensorIndex> in,
                    std::span<const TensorIndex> out, std::span<const TensorIndex> made);
  void add_chain(PreparedInstruction step, PlaceIndex place);
  std::span<std::byte> workspace_at(PlaceIndex place) const;
  void find_slots();

  /// Gives a number its tensor, and the numbers that are views of it theirs.
  void set(TensorIndex number, Tensor x);
  void drop(TensorIndex number) noexcept;
  void fill(const PreparedInstruction& step) const;
  /// Moves the versions of what the step has written.
  void bump(const PreparedInstruction& step) const;
  void run_kernel(PreparedInstruction& step, const Attributes& attributes);
  void execute(PreparedInstruction& step, const Bound& bound);
  void execute_with_places(PreparedInstruction& step, const Bound& bound);
  /// With copies of the operands that are in other memory than the step computes in; what it writes
  /// there is copied back.
  void execute_across(PreparedInstruction& step, const Bound& bound);
  /// Begins to fetch what the instructions from `first` to that of the step ask for.
  void fetch_ahead(std::size_t section, std::size_t first, const PreparedInstruction& step);
  void run_graph(std::vector<PreparedInstruction>& steps, StepGraphs::RecordedGraph& recorded,
                 const Bound& bound);
  /// Memory of a result that is not in the block.
  Tensor allocated(TensorIndex number) const;

  const Program& program_;
  Device device_;
  CompiledChains* compiled_;
  MemoryPlace* elsewhere_;
  const Op* copy_op_ = nullptr;
  std::vector<bool> on_host_;
  Shadow shadow_;
  ByMemory<MemoryLocation> kept_in_;
  Block block_;
  Tensor memory_block_;
  PlannedMemory memory_;
  ByTensor<Tensor> tensors_;
  std::vector<std::vector<PreparedInstruction>> sections_;
  std::vector<std::map<std::size_t, MemoryPlaceCalls>> place_calls_;
  ByTensor<std::vector<Tensor*>> slots_;             // of steps
  ByTensor<std::vector<const Instruction*>> views_;  // by their base
  ByMemory<std::vector<TensorIndex>> numbers_;
  std::optional<StepGraphs> graphs_;    // none: not asked for
  std::optional<HostFetches> fetches_;  // none: all is in the device's memory
};

}  // namespace tessera::graph
