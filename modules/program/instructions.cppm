export module tessera.program:instructions;

import tessera.base;
import tessera.mesh;
import tessera.device;
import tessera.tensor;
import :expression;
import :index;
import :roles;

export namespace tessera {

/// A dynamic argument that differs from step to step.
struct Binding {
  int field = 0;            // of the operator's arguments
  Expression value = {};    // of a number or a count
  std::string stream = {};  // of random numbers: the stream that they are drawn from
  std::int64_t offset = 0;  // and how far from where the stream stands at the step's beginning
};
/// "lr*0.3", "noise+8".
std::string to_text(const Binding& binding);

/// A tensor of a program: its shape and type, and what its memory is booked on.
struct ProgramTensor : ResultShape {
  SpecHandle spec = {};  // of a distributed tensor, whose shape is the global one; null: plain
  MemoryCategory category = MemoryCategory::other;
  /// Its memory is not the device's, but a MemoryPlace's: that of a value that is offloaded. Only
  /// of what Instruction::Kind::empty makes.
  bool elsewhere = false;
};

/// Where an instruction comes from.
struct ProgramScope {
  Phase phase = Phase::none;
  std::string module = {};  // the innermost one, by its qualified name
  /// Of what communicates: the operation on distributed tensors that the program has written for
  /// it ("redistribute", "full_tensor"), where it is another one.
  std::string operation = {};
  /// The innermost phase (run_phase) that has no name of a Phase: an action of a pipeline's
  /// schedule ("forward of stage 1, micro-batch 3"), or what a program of its own has named.
  std::string part = {};
};

/// One line of a program.
struct Instruction {
  enum class Kind : std::uint8_t {
    call,     // an operator: in -> out; operators that write return no new tensors
    alias,    // out[0]: other strides, another place, type or layout in the memory of in[0]
    empty,    // out[0]: memory that is not initialised
    full,     // out[0]: values[0] everywhere
    values,   // out[0]: these values in row-major order
    release,  // in[0]'s memory is released; it and its aliases keep their identity
    restore,  // and allocated again
    check,    // the host reads in[0]: it must have these values
  };
  Kind kind = Kind::call;
  const Op* op = nullptr;
  std::vector<TensorIndex> in = {};  // one that does not exist: an absent operand
  std::vector<TensorIndex> out = {};
  Attributes attributes = {};
  std::vector<Binding> bindings = {};
  Dims strides = {};
  std::int64_t offset = 0;  // elements of out[0]'s type from in[0]'s first one
  std::vector<double> values = {};
  ScopeIndex scope = ScopeIndex(0);
  std::string guard = {};  // of a check: the name of the guard (see guard()); empty: none

  inline bool is_guard() const { return kind == Kind::check && !guard.empty(); }
  /// Whether it is a call that writes its operand number `operand`.
  bool writes(std::size_t operand) const;
};

/// Instructions that are executed together; between two sections the host may read outputs and set
/// variables.
struct Section {
  SectionKind kind = SectionKind::step;
  std::vector<Instruction> instructions = {};
};

/// Where an instruction is.
struct ProgramPlace {
  std::size_t section = 0;
  std::size_t at = 0;  // of the section's instructions
};

/// A tensor that exists before the step.
struct ProgramInput {
  TensorIndex tensor = {};
  Role role = Role::other;
  int micro_batch = 0;  // of rows: which micro-batch of the step they are
};
bool operator==(const ProgramInput& a, const ProgramInput& b);

/// A parameter of which an optimizer counts a step where a step with this program is taken.
struct ProgramUpdate {
  int optimizer = 0;       // its number among those of the step
  std::string input = {};  // the parameter's
};
bool operator==(const ProgramUpdate& a, const ProgramUpdate& b);

/// A step of one rank. Below distribution it is what is executed: local tensors, operators and
/// collectives. Above distribution it is what was written: operators on distributed tensors, with
/// global shapes and layouts; it means the same on all ranks, but for aliases of local memory. No
/// autograd and no hooks are in either.
struct Program {
  ModeLevel level = ModeLevel::below_distribution;
  int rank = 0;
  std::vector<DeviceMesh> meshes = {};  // of the layouts, in the order of their first tensors
  ByTensor<ProgramTensor> tensors = {};
  std::map<std::string, ProgramInput> inputs = {};
  std::map<std::string, TensorIndex> outputs = {};
  std::map<std::string, std::string> gradients = {};  // outputs that are gradients of inputs
  std::vector<Section> sections = {};
  ByScope<ProgramScope> scopes = ByScope<ProgramScope>(1);  // the first one says nothing
  std::vector<std::string> numbers = {};                    // that bindings use, in their order
  std::vector<std::string> counts = {};
  /// How many numbers the step takes of each stream.
  std::map<std::string, std::uint64_t> draws = {};
  /// The values of StepVariables::guards with which alone the program is right.
  std::map<std::string, double> guards = {};
  std::vector<ProgramUpdate> updates = {};

  /// The number of a mesh; added where it is new.
  std::size_t mesh(const DeviceMesh& mesh);
  /// The index of a scope; added where it is new.
  ScopeIndex scope(const ProgramScope& scope);
  /// Names of the inputs by their tensors.
  std::map<TensorIndex, std::string> inputs_in_order() const;
  /// Inputs whose values operators write; what only waits for their memory does not.
  std::vector<std::string> written() const;
  /// One instruction a line; the same in every process. See docs/graph.md.
  std::string to_text() const;
  /// Reads to_text's form; every operator must be registered. Errors (input) that begin with
  /// "WHERE, line N": what is wrong in the line, or is missing.
  static Program parse(std::string_view text, const std::string& where = "program");
};

/// "%12"; "-": none.
std::string to_text(TensorIndex tensor);
/// "%12: f32[2, 4] = mul(%3, %4)": for errors and text.
std::string to_text(const Program& program, const Instruction& instruction);

/// The tensor of an Instruction::Kind::alias, in the memory of `base`.
Tensor aliased(const Instruction& instruction, const ResultShape& shape, const Tensor& base);
/// Whether other ranks read a tensor's memory, because they reduce it.
ByTensor<bool> read_by_peers(const Program& program);

/// The value that the host reads in a check, by operator and module: for errors.
std::string read_in_words(const Program& program, const Instruction& check);

}  // namespace tessera
