module tessera.capture:recorder_state;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import :recording;
import :recorder;

namespace tessera {

/// A tensor, or this rank's part of a distributed one, within its storage.
struct RecordedView {
  TensorIndex tensor;
  std::int64_t offset;
  Dims shape;
  Dims strides;
  DType dtype;
  SpecHandle spec = {};
};

/// Memory that the step has seen. Its storage's tag finds it.
struct RecordedMemory {
  std::vector<RecordedView> views;  // of these the first one is the base of aliases
  bool pending = false;             // a collective that was issued fills it
  /// A restored storage that no instruction has used yet: its tensor is made when its type is
  /// known. -1: none.
  std::ptrdiff_t undeclared = -1;
  std::size_t undeclared_section = 0;
  std::int64_t bytes = 0;
  MemoryCategory category = MemoryCategory::other;
};

struct Recorder::State {
  explicit State(ModeLevel level);

  std::uint64_t serial;
  Recording recording;
  std::vector<RecordedMemory> memories;
  bool paused = true;
  Phase phase = Phase::none;
  std::string part_of_step = {};          // see ProgramScope::part
  const Instruction* followed = nullptr;  // see Recorder::follow
  bool followed_on = false;               // and a call of its operator was recorded

  Program& program() { return recording.program; }
  std::vector<Instruction>& instructions() { return program().sections.back().instructions; }

  /// Appends an instruction of the phase and module that are running.
  void add(Instruction made);
  /// A tensor that an instruction has made.
  TensorIndex define(const Tensor& x, MemoryCategory category = MemoryCategory::other);
  /// An operand; an alias of its memory where it is another view of it.
  TensorIndex index_of(const Tensor& x, const std::string& what);

  /// The sources of a call's arguments, which the instruction then has as expressions.
  static void bind(Instruction& made);
  /// Random numbers follow from the streams as they stood when the step began.
  void bind_streams(const StepVariables& variables);
  /// Names the variables that bindings use.
  void declare_variables(const StepVariables& variables);
  Tensors record(const Call& call, NextCall& next);
  void create(const Action& action);
  void change_memory(const Action& action);
  void read(Action& action, NextAction& next);

 private:
  RecordedMemory* memory_of(const Storage& storage);
  RecordedMemory& new_memory(Storage& storage);
  TensorIndex new_tensor(const ResultShape& shape, const SpecHandle& spec = {});
  /// A storage that was restored before it was used becomes a tensor of the type of its first use.
  void declare(RecordedMemory& memory, const Tensor& x);
  /// Adds an alias of memory that the step has seen.
  TensorIndex add_alias(RecordedMemory& memory, const Tensor& x, const std::string& what);
  void note_pending(std::span<const Tensor> tensors);
};

}  // namespace tessera
