export module tessera.record:replay;

import tessera.base;
import tessera.tensor;
import :program;

export namespace tessera {

/// Executes a program: only its instructions, on local tensors. What an instruction is the last one
/// to use is freed after it.
class Replay {
 public:
  /// Error: the program is another rank's.
  explicit Replay(Program program);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  const Program& program() const;
  /// "" where the program is right for these variables; otherwise which of them differs from the
  /// recorded value that it requires.
  std::string refusal(const StepVariables& variables) const;

  /// Begins a step: every input by its name. Errors: an input is missing, is unknown, or has
  /// another shape or type than the recorded one (both are named).
  void begin(const std::map<std::string, Tensor>& inputs);
  /// Executes a section. Errors: a variable that the section needs is missing; a value that the
  /// host read differs from the recorded one; those of the operators, with the instruction.
  void run(std::string_view section, const StepVariables& variables);
  /// Error: no section has computed it.
  const Tensor& output(const std::string& name) const;
  /// Ends the step: the random streams move on as in the recorded step, and tensors are dropped.
  void end();
  /// Drops what the step has computed, after an error.
  void abandon() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
