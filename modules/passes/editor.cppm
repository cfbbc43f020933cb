export module tessera.passes:editor;

import tessera.base;
import tessera.tensor;
import tessera.program;

export namespace tessera::graph {

/// A change of communication that a rank would make.
struct Proposal {
  CallGroup group = {};      // whose calls it changes
  std::uint64_t change = 0;  // equal on ranks that propose the same
};
/// Which of this rank's proposals all other ranks of their groups propose too. All ranks of a run
/// call it together, each with its own proposals.
using Agree = std::function<std::vector<bool>(std::span<const Proposal> proposals)>;
/// For programs that are only looked at: supposes that the other ranks are like this one.
std::vector<bool> suppose_agreement(std::span<const Proposal> proposals);

/// Tensors on the CPU that changes have added to a step, by the names that they have as its
/// inputs. Its training keeps them from step to step and saves them. All ranks hold the same
/// values.
using AddedState = std::map<std::string, Tensor>;

/// A program while it is changed: instructions and state are added to it.
class Editor {
 public:
  static constexpr const char* loss_output = "loss";

  struct EditorOptions {
    const Analysis* known = nullptr;  // of the program as it is; null: it is made when asked for
    Agree agree = {};
    bool needs_loss = false;  // the change has said so
  };

  /// `state`: what is there already, of programs of other steps; gets what is added.
  Editor(Program& program, AddedState& state);
  Editor(Program& program, AddedState& state, EditorOptions given);
  ~Editor();
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  /// Anything may be changed here; instructions that are there say what to look for.
  Program& program() { return program_; }
  /// What is known of the program as it was before the change: which instructions conflict, what
  /// shares memory. To be asked for before the program is changed.
  const Analysis& known();
  /// How ranks agree on what only some of them could change in their communication. Null: such
  /// changes must not be made.
  const Agree& agree() const { return given_.agree; }
  /// The sum of the step's losses. Error: the change does not say that it needs it
  /// (ChangeFacts::needs_loss), without which its host does not know that there must be one.
  TensorIndex loss() const;
  /// An input "transform.NAME", which has the values of `initial` in the first step and afterwards
  /// those that the step has left in it. Contiguous, on the CPU, equal on all ranks.
  /// Errors: the name is taken; another program of this run has it with another shape or type.
  TensorIndex state(const std::string& name, const Tensor& initial);
  /// The step has this input no more: a parameter or state of the optimizer that is no longer used,
  /// or state of another change. The training keeps it as it is, and its checkpoints have it.
  /// Errors: there is no such input; an instruction or an output uses it.
  void remove_input(const std::string& name);

  /// Sets where instructions are added next: before instruction `at` of a section; at its end where
  /// `at` is the number of its instructions.
  void move_to(std::size_t section, std::size_t at);
  /// The instruction that comes after what was added last.
  std::size_t at() const { return at_; }
  /// Adds a call and returns its results; none of an operator that writes its first operand.
  /// `arguments`: as in the text of a program ("dim=1"). The scope is that of the instruction after
  /// it, or before it at the end of a section.
  /// Errors: there is no such operator; operands or arguments that it refuses.
  std::vector<TensorIndex> call(std::string_view op, const std::vector<TensorIndex>& in,
                                std::string_view arguments = {});
  /// Adds a call of an operator with one result.
  TensorIndex value(std::string_view op, const std::vector<TensorIndex>& in,
                    std::string_view arguments = {});

  /// The first call of this operator; none: nothing.
  std::optional<ProgramPlace> find(std::string_view op) const;
  /// Takes the call at `place` away (an anchor, for example) and puts there what `make` adds: it
  /// gets the call's operands and returns tensors for its results, of their shapes and types, which
  /// all that follows uses instead; none (TensorIndex()) for a result that nothing uses.
  /// Errors: it is not a call of an operator that makes results; a result is missing or does not
  /// fit.
  void replace(
      ProgramPlace place,
      const std::function<std::vector<TensorIndex>(const std::vector<TensorIndex>& in)>& make);

 private:
  void use_instead(TensorIndex before, TensorIndex after, std::string_view op);

  Program& program_;
  AddedState& state_;
  EditorOptions given_;
  std::unique_ptr<Analysis> made_;  // what known() returns, where nothing was given
  std::size_t section_ = 0;
  std::size_t at_ = 0;
};

}  // namespace tessera::graph
