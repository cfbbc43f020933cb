module;
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.app.config;
import tessera.runs;
import tessera.app.run;
import :run_data;

namespace tessera::app {

runs::RunSpec load_run_config(const TrainArguments& arguments) {
  runs::RunSpec config = load_config(
      arguments.config, arguments.overrides,
      [&](const runs::RunSpec& opened) { runs::use_plugins(opened, arguments.plugins); });
  config.machine = arguments.machine;
  config.command = {"tessera", "train", arguments.config};
  config.command.insert(config.command.end(), arguments.overrides.begin(),
                        arguments.overrides.end());
  return config;
}

std::vector<std::string> plugin_words(const TrainArguments& arguments) {
  std::vector<std::string> words;
  for (const std::string& plugin : arguments.plugins) {
    words.insert(words.end(), {"--plugin", plugin});
  }
  return words;
}

TrainArguments with_steps(TrainArguments arguments, const runs::RunSpec& config,
                          const runs::Dataset& data) {
  if (config.train.epochs > 0) {
    arguments.overrides.emplace_back("train.epochs=0");
    arguments.overrides.push_back(fmt::format("train.steps={}", runs::steps_of(config, data)));
  }
  return arguments;
}

}  // namespace tessera::app
