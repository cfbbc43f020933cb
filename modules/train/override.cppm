export module tessera.train:override;

import tessera.base;
import tessera.plugin;
import tessera.graph;
import tessera.nn;

export namespace tessera {

/// What takes the place of modules in captured steps, and the plugin kind "override". The model
/// itself stays as it is written: it has the parameters and their first values, checkpoints hold
/// it, and evaluations compute it. In a plugin's register_plugin:
///     registrar.add<Override>("Capacity", [] {
///       return Override{.name = "Capacity", .about = "...", .replacement = replacement}; });
struct Override {
  static constexpr plugin::Kind plugin_kind{"override"};
  using Factory = std::function<Override()>;

  std::string name = {};
  std::string about = {};  // one sentence
  /// Before the capture: asked for each module by its qualified name, outer ones first, and
  /// maybe twice. What it returns is captured in the module's place (its children are not asked
  /// for then); null: the module stays. The new module may have the children and parameters of the
  /// one before. Its parameters have the names, shapes and types of the model's, of which it may
  /// leave some out.
  std::function<std::shared_ptr<nn::Module>(const std::string& name,
                                            const std::shared_ptr<nn::Module>& module)>
      replacement = {};
  /// After it, and after all passes: what graph::Transform::run does, such as putting calls in the
  /// place of anchors (graph::register_anchor). Null: nothing.
  std::function<void(graph::Editor& editor)> transform = {};
  /// The model as it is written is what a validation should compute, because both compute the same,
  /// or because only training is to differ.
  bool evaluates_as_written = false;

  /// Its transform, with its name: every step must be one that was captured with it.
  graph::Transform as_transform() const;
};

/// That of the plugin that offers it. Errors (input): there is none, its plugin is refused; (run):
/// it has another name, or replaces nothing.
Override find_override(const std::string& name);
std::vector<std::string> override_names();

/// Replaces modules of a model that is only captured, before a plan is applied to it. Returns their
/// names. Errors (input), with the override's name: it replaces no module of this model; what it
/// throws.
std::vector<std::string> replace_modules(nn::Module& root, const Override& override);

}  // namespace tessera
