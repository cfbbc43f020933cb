export module tessera.passes:change;

import tessera.base;
import tessera.plugin;
import tessera.nn;
import tessera.program;
import :editor;

export namespace tessera::graph {

/// What the host must know of a change before it uses it. These facts, and which functions the
/// change has, decide where it may be used; its name does not. A false fact is an error as soon as
/// a check sees it.
struct ChangeFacts {
  /// It leaves the bits of inputs and outputs, and the communication. Programs are compared after
  /// it (see verify_same), and steps with replaced modules by graph.verify. Only such a change is a
  /// pass, which may be named in ExecutionOptions::passes.
  bool keeps_bits = false;
  /// It uses the step's loss (Editor::loss), so a program without one is refused.
  bool needs_loss = false;
  /// For one that replaces modules: an evaluation of the model as it is written is right, although
  /// steps compute something else, because only training is to differ.
  bool evaluates_as_written = false;
  /// After it memories end as early as they can. A program is fitted into a budget of memory after
  /// the last such pass, and before those that follow it.
  bool ends_lifetimes = false;
  /// It only moves communication to other places, so it also runs on the programs that a step was
  /// split into.
  bool moves_communication = false;
  /// For a built-in pass: it runs where nothing else is said. Those of plugins run where they are
  /// named.
  bool is_default = false;
  std::vector<std::string> after = {};  // changes that must have run before
};

/// Of a pass that keeps memory to spare communication, where there is not memory for all of it.
struct PartialPass {
  /// Spares at most so many calls; all of them where `most` is negative. Returns how many.
  std::function<int(Program& program, int most)> spare = {};
  /// Spares as many as leave the program within the budget of memory (see planned_bytes).
  std::function<void(Program& program, std::int64_t budget)> within = {};
};

/// A change of captured steps, and the plugin kind "change". In a plugin's register_plugin:
///     registrar.add<graph::Change>("Fold", [] {
///       return graph::Change{
///           .name = "Fold", .about = "...", .facts = {.keeps_bits = true}, .run = fold}; });
struct Change {
  static constexpr plugin::Kind plugin_kind{"change"};
  using Factory = std::function<Change()>;

  std::string name = {};
  std::string about = {};  // one sentence
  ChangeFacts facts = {};
  /// After distribution: changes the program of each rank. All ranks must communicate in the same
  /// order afterwards, so what decides about that must follow from what all of them have in common.
  std::function<void(Editor& edit)> run = {};
  /// Before distribution: asked for each module by its qualified name, outer ones first, and maybe
  /// twice. What it returns is captured in the module's place (its children are not asked for
  /// then); null: the module stays. The new module may have the children and parameters of the one
  /// before. Its parameters have the names, shapes and types of the model's, of which it may leave
  /// some out. The model itself stays as it is written: checkpoints hold it, evaluations compute
  /// it.
  std::function<std::shared_ptr<nn::Module>(const std::string& name,
                                            const std::shared_ptr<nn::Module>& module)>
      replacement = {};
  /// For a pass that keeps memory to spare communication, which it can do in part.
  std::optional<PartialPass> keeps = {};
};

/// Where the change acts and its facts, each in words, for people: "before distribution: replaces
/// modules", "keeps bits".
std::vector<std::string> facts_in_words(const Change& change);

/// Whether it is a pass: it keeps bits, and acts on the program alone.
bool is_pass(const Change& change);
/// Error: its functions and its facts contradict each other, or it has no function.
void check_facts(const Change& change);

/// The built-in passes, in the order in which they are useful.
const std::vector<Change>& built_in_passes();
/// The built-in passes that run where nothing else is said.
std::vector<std::string> default_passes();
/// A built-in change, or that of the plugin that offers it, which is found and loaded. Safe to call
/// from several threads. Errors (input): there is none (with all names), its plugin is refused;
/// (run): the plugin's has another name; see check_facts.
Change find_change(const std::string& name);
/// Those of plugins too, which are not loaded.
std::vector<std::string> change_names();
/// Error (input): there is no change of one of these names. No plugin is loaded.
void check_changes(std::span<const std::string> names);

/// The passes of these names without those that keep memory to spare communication.
std::vector<std::string> without_keeping(std::span<const std::string> names);

/// Errors (input): an unknown name; a change that is no pass, because it does not keep bits or acts
/// before distribution; a pass that another one must precede.
void check_passes(std::span<const std::string> names);
/// Error (input): none of `before` is one of those that the change must come after.
void check_order(const Change& change, std::span<const std::string> before);

}  // namespace tessera::graph
