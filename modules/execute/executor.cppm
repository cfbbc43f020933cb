export module tessera.execute:executor;

import tessera.base;
import tessera.tensor;
import tessera.program;

export namespace tessera {

/// Requests of an executor to a MemoryPlace at an instruction.
struct MemoryPlaceCalls {
  std::vector<TensorIndex> fetched = {};   // before it: those that an instruction after it reads
  std::vector<TensorIndex> put_away = {};  // after it: those that it has used
};
/// By section and instruction. Values are fetched some instructions before they are read.
std::vector<std::map<std::size_t, MemoryPlaceCalls>> memory_place_calls(const Program& program);
/// Memory for a tensor that is kept elsewhere (ProgramTensor::elsewhere). Errors: there is no place
/// for it; the device has memory of its own, which copies do not reach.
Tensor allocate_elsewhere(MemoryPlace* place, const ResultShape& shape, Device device);

/// Executes a program step by step: begin, the sections in their order, end. One thread uses it.
class Executor {
 public:
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor();

  virtual const Program& program() const = 0;
  /// Why the program is not that of steps with these values of the host (Program::guards): which
  /// one differs. "": it is.
  std::string refusal(const std::map<std::string, double>& guards) const;

  /// Begins a step: every input by its name. Errors: an input is missing, is unknown, or has
  /// another shape or type than the recorded one (both are named).
  void begin(const std::map<std::string, Tensor>& inputs) { begin_in_order(arranged(inputs)); }
  /// Begins with inputs in the order of Program::inputs, as arranged() returns them.
  virtual void begin_in_order(std::span<const Tensor> inputs) = 0;
  std::vector<Tensor> arranged(const std::map<std::string, Tensor>& inputs) const;
  /// Executes a section. Errors: a variable that the section needs is missing; a value that the
  /// host read differs from the recorded one (GuardFailure: it is a guard's, and nothing that
  /// outlives the step was changed); those of the operators, with the instruction.
  virtual void run(SectionKind section, const StepVariables& variables) = 0;
  /// Valid until the step ends. Error: no section has computed it.
  virtual const Tensor& output(const std::string& name) const = 0;
  /// Ends the step: the random streams move on as in the recorded step, and tensors are dropped.
  virtual void end() = 0;
  /// Gives back the memory that is kept from step to step; the next step takes it again.
  virtual void release_memory() noexcept {}
  /// Drops what the step has computed, after an error.
  virtual void abandon() noexcept = 0;
  /// `at_part`: called with each part of the step (ProgramScope::part) before its instructions are
  /// executed, on their thread. Instructions of no part belong to the one before them.
  void watch_parts(std::function<void(const std::string& part)> at_part) {
    at_part_ = std::move(at_part);
  }

 protected:
  void enter_part(const std::string& part) const {
    if (at_part_) {
      at_part_(part);
    }
  }
  /// Errors: x does not fit an input of the program.
  void check_input(const std::string& name, TensorIndex number, const Tensor& x) const;
  /// Error: the program has none of this kind.
  std::size_t section_of(SectionKind kind) const;
  /// The arguments of a call in this step. Error: a variable has no value.
  static Attributes bound(const Instruction& instruction, const StepVariables& variables);
  /// An error of an instruction, with its place in the program.
  /// `tensors`: what the step has made. A guard that has failed is thrown on as such,
  /// after what was issued is complete.
  [[noreturn]] void rethrow(const Error& error, ProgramPlace place,
                            const ByTensor<Tensor>& tensors) const;
  /// The instruction at a place, for errors of others: see graph::call_in_words.
  std::string in_words(ProgramPlace place) const;
  void move_streams() const;

 private:
  std::function<void(const std::string& part)> at_part_;
};

/// Executes an instruction on `tensors` and adds its results to them: through the
/// dispatcher in a program above distribution, by kernels below it. `arguments`: of its operator.
/// `device`: of tensors that it makes. Errors: those of the operator; a result has another shape,
/// type or layout than the program says.
void execute(const Program& program, const Instruction& instruction, const Attributes& arguments,
             ByTensor<Tensor>& tensors, Device device);
/// Runs `body` in the part, phase and module of an instruction.
void run_in_scope(const Program& program, const Instruction& instruction,
                  const std::function<void()>& body);
/// A tensor of Instruction::Kind::empty, full or values.
Tensor filled(const Instruction& instruction, const ResultShape& shape, Device device);
/// Checks an Instruction::Kind::check. Error: x has other values than those that the host read;
/// GuardFailure, without a place, where it is a guard.
void check_recorded_values(const Instruction& instruction, const Tensor& x);

}  // namespace tessera
