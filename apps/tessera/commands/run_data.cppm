export module tessera.app.commands:run_data;

import tessera.app.base;
import tessera.app.config;
import tessera.runs;
import tessera.app.run;
import :subcommands;

// What commands about a run begin with: its config, its model's sizes and its data.

export namespace tessera::app {

/// The config that a command line names, with its plugins. Errors (input): see load_config.
runs::RunSpec load_run_config(const TrainArguments& arguments);

/// The words of a command line that name its plugins.
std::vector<std::string> plugin_words(const TrainArguments& arguments);

/// The command line with the steps that train.epochs makes of the data (runs::with_data).
TrainArguments with_steps(TrainArguments arguments, const runs::RunSpec& config,
                          const runs::Dataset& data);

}  // namespace tessera::app
