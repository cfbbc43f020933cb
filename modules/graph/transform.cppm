export module tessera.graph:transform;

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.program;

export namespace tessera::graph {

/// Tensors on the CPU that transformations have added to a step, by the names that they have as its
/// inputs. Its training keeps them from step to step and saves them. All ranks hold the same
/// values.
using AddedState = std::map<std::string, Tensor>;

/// A program while it is changed: instructions and state are added to it.
class Editor {
 public:
  /// `state`: what is there already, of programs of other steps; gets what is added.
  Editor(Program& program, AddedState& state);

  /// Anything may be changed here; instructions that are there say what to look for.
  Program& program() { return program_; }
  /// An input "transform.NAME", which has the values of `initial` in the first step and afterwards
  /// those that the step has left in it. Contiguous, on the CPU, equal on all ranks.
  /// Errors: the name is taken; another program of this run has it with another shape or type.
  TensorIndex state(const std::string& name, const Tensor& initial);
  /// The step has this input no more: a parameter or state of the optimizer that is no longer used,
  /// or state of a transformation. The training keeps it as it is, and its checkpoints have it.
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
  std::size_t section_ = 0;
  std::size_t at_ = 0;
};

/// A change of a program, mostly of what a step computes, and the plugin kind "transform". It runs
/// on the program of each rank after all passes. All ranks must communicate in the same order
/// afterwards. In a plugin's register_plugin:
///     registrar.add<graph::Transform>("Balance", [] {
///       return graph::Transform{.name = "Balance", .about = "...", .run = balance}; });
struct Transform {
  static constexpr plugin::Kind plugin_kind{"transform"};
  using Factory = std::function<Transform()>;

  std::string name = {};
  std::string about = {};  // one sentence
  std::function<void(Editor& editor)> run = {};
  /// It leaves the bits of inputs and outputs, as a pass does, and is checked as one.
  bool keeps_bits = false;
};

/// That of the plugin that offers it, which is found and loaded. Errors (input): there is none
/// (with all names), its plugin is refused; (run): it has another name, or does nothing.
Transform find_transform(const std::string& name);
/// Error (input): there is no transformation of one of these names. None is loaded.
void check_transforms(std::span<const std::string> names);
std::vector<std::string> transform_names();

/// Runs it. Errors, with its name: those that it throws; the program is not right afterwards (see
/// verify), has lost an output, or has an input that neither the step nor `state` has. An input
/// that the program has lost is kept as it is by the training.
void run_transform(const Transform& transform, Program& program, AddedState& state);

}  // namespace tessera::graph
