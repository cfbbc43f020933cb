module tessera.app.commands:run_data;

import tessera.app.base;
import tessera.app.config;
import tessera.app.data;
import tessera.app.model;
import tessera.app.setup;
import tessera.app.run;
import :subcommands;

// What commands about a run begin with: its config, its model's sizes and its data.

namespace tessera::app {

/// The config that a command line names, with its plugins. Errors (input): see load_config.
Config load_run_config(const TrainArguments& arguments);

/// The words of a command line that name its plugins.
std::vector<std::string> plugin_words(const TrainArguments& arguments);

struct RunData {
  ModelShape shape;
  std::shared_ptr<const Dataset> dataset;
};
/// Opens and checks them. Errors (input), each with the config's key: see model_shape and Dataset.
RunData open_run_data(const Config& config);

/// The command line with the steps that train.epochs makes of the data, and the config that it
/// names then. Errors (input): the schedule does not fit these steps.
TrainArguments with_steps(TrainArguments arguments, const Config& config, const Dataset& data);
Config config_with_steps(const TrainArguments& arguments, Config config, const Dataset& data);

/// The checked plan of a run. Errors with a place in the config: those of check_plan.
CheckedPlan planned(const Run& run);

}  // namespace tessera::app
