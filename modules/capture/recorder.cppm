export module tessera.capture:recorder;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :recording;

export namespace tessera {

/// Records what its thread executes below distribution, or what it has written above, within its
/// sections. Everything is executed as without it, and the recorder keeps no tensor alive. Dynamic
/// arguments that come from a Number or a Count with a source, or from a random stream, follow from
/// the step's variables; all others are constants.
/// Errors within a section: a tensor that was made before and is not an input; a communicator that
/// is called outside of any operator; values that are read and cannot be written as text.
class Recorder final : public Mode {
 public:
  explicit Recorder(ModeLevel level = ModeLevel::below_distribution);
  ~Recorder() override;

  /// A tensor that exists before it is used. `role`: what it is for the owner of the step.
  /// `micro_batch`: of rows, the number of theirs in the step. `category`: what its memory counts
  /// as where it is booked on nothing, because it is a part of other memory or on the meta device.
  /// Errors: it is not contiguous, or has a name already; below distribution, it is a distributed
  /// tensor.
  void input(const std::string& name, const Tensor& x, Role role = Role::other,
             MemoryCategory category = MemoryCategory::other, int micro_batch = 0);
  /// A tensor that is read after the step, or between two sections. Error: no section has made it.
  void output(const std::string& name, const Tensor& x);
  /// Names the gradient of an input as an output. Error: there is no such input.
  void gradient(const std::string& name, const Tensor& x, const std::string& input);
  /// Optimizer number `optimizer` of the step has updated the parameter that is this input, and
  /// counts a step of it. Errors: there is no such input; it is not a parameter.
  void update(int optimizer, const std::string& input);
  /// Runs `body` and records it as a section. Instructions belong to the innermost phase
  /// (run_phase) that has the name of a Phase, and to the innermost one that has another name
  /// (ProgramScope::part).
  void section(SectionKind kind, const std::function<void()>& body);
  /// Runs `body` unseen: it makes inputs, for example.
  void pause(const std::function<void()>& body);
  /// Calls that follow execute this instruction of another program: the dynamic arguments of its
  /// operator follow from the same variables. Null: they do not.
  /// Error: no call of the last such operator was recorded, so that nothing follows from them.
  void follow(const Instruction* instruction);
  /// Ends the recording. `variables`: of this step. Errors: collectives that were issued and are
  /// not complete; the step took the plain value() of a number that follows from a variable.
  Recording finish(const StepVariables& variables);
  /// Ends a recording whose instructions followed those of `other`: the program has its
  /// variables, random streams, guards, updates and gradients.
  Program finish_following(const Program& other);

  Tensors call(const Call& call, NextCall& next) override;
  void perform(Action& action, NextAction& next) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
