export module tessera.hub:peft_config;

import tessera.base;
import tessera.nn;
import :updates;

// adapter_config.json of the library PEFT.

export namespace tessera::hub {

/// Which modules PEFT gives an update. Nothing is known of what it leaves out: a regular
/// expression, or a default that depends on the model.
struct PeftTargets {
  std::optional<std::vector<std::string>> names;  // ends of names, or whole ones
  std::optional<std::string> whole;               // the name of the only one
  bool all_linear = false;                        // all but the head
  std::vector<std::string> excluded;
  std::vector<std::int64_t> layers;         // empty: all
  std::vector<std::string> layer_patterns;  // what comes before a layer's number; empty: anything

  bool contains(const std::string& module) const;
};

/// Updates as the file describes them. Values that are wrong, or that nothing here computes, are
/// noted in `problems`.
struct PeftConfig {
  /// Values of modules that differ from the default, by pattern. The first one in the file's order
  /// that matches a module decides.
  template <class T>
  using Patterns = std::vector<std::pair<std::string, T>>;

  std::int64_t rank = 8;
  double alpha = 8;
  bool rank_stabilized = false;
  bool dora = false;
  Patterns<std::int64_t> ranks;
  Patterns<double> alphas;
  PeftTargets targets;
  std::string base;                        // base_model_name_or_path; empty: none is named
  bool transposed_weights = false;         // fan_in_fan_out: PEFT decides by the layer's class
  std::vector<std::string> saved_modules;  // modules_to_save: stored whole, beside the updates
  std::vector<std::string> problems;

  /// The update of a module.
  nn::LowRankUpdate of(const std::string& module) const;
};

/// Error (input): the file cannot be read, or describes another kind of adapter.
PeftConfig read_peft_config(const std::string& file);

/// The text of the file. `modules` are all modules of the model that have a weight: target_modules
/// names kinds of layers where all of a kind have an update. Error (input): layers with and without
/// dora, or with and without rank_stabilized.
std::string peft_config(const Updates& updates, const std::set<std::string>& modules,
                        const std::string& base);

}  // namespace tessera::hub
