export module tessera.app.config:load_config;

import tessera.runs;
import tessera.app.base;

// Configs: TOML files and key=value overrides as a description of a run, and the other way round.

export namespace tessera::app {

/// Makes plugins known that a config names; gets the config with its plugins alone.
using PluginSetup = std::function<void(const runs::RunSpec&)>;

/// Reads `file`, applies the overrides ("train.steps=50") in their order and checks all that can
/// be known without opening other files. All paths in the result are absolute or relative to the
/// working directory, no longer to the config's folder. Throws one Error (input) that lists every
/// problem found, each with file and line. `plugins` is called before a name (a family of
/// models, a pass) is looked up that may be in a plugin; its errors end the loading.
runs::RunSpec load_config(const std::filesystem::path& file,
                          std::span<const std::string> overrides = {},
                          const PluginSetup& plugins = {});

/// Reads a config from a text; `file` is for error texts and relative paths.
runs::RunSpec parse_config(std::string_view text, const std::filesystem::path& file,
                           std::span<const std::string> overrides = {},
                           const PluginSetup& plugins = {});

/// The keys that were given, as a config file that describes the same run wherever it is: paths are
/// absolute. Read again, it has the same to_json().
std::string to_toml(const runs::RunSpec& config);
/// An entry of [[parallel]] as `parallel=[...]` takes it: {style = "FSDP", axis = "shard", ...}.
std::string entry_text(const runs::RunSpec& config, std::size_t entry);

/// The Markdown lists of docs/config.md: one heading for each section and each family of models,
/// one item for each key.
std::string config_reference();

}  // namespace tessera::app
