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
import tessera.app.data;
import tessera.app.model;
import tessera.app.setup;
import tessera.app.run;
import :named_plugins;
import :run_data;

namespace tessera::app {
namespace {

void configure_plugins(const Config& config, const TrainArguments& arguments) {
  std::vector<std::string> paths = arguments.plugins;
  paths.insert(paths.end(), config.plugins.paths.begin(), config.plugins.paths.end());
  try {
    use_plugins(std::move(paths));
  } catch (const Error& error) {
    const bool from_config =
        std::ranges::any_of(config.plugins.paths, [&](const std::string& path) {
          return error.fields().thing.find(path) != std::string::npos;
        });
    if (!from_config) {
      throw;
    }
    at_key(config, "plugins.paths", [&] { throw Error(error); });
  }
}

}  // namespace

Config load_run_config(const TrainArguments& arguments) {
  return load_config(arguments.config, arguments.overrides,
                     [&](const Config& config) { configure_plugins(config, arguments); });
}

std::vector<std::string> plugin_words(const TrainArguments& arguments) {
  std::vector<std::string> words;
  for (const std::string& plugin : arguments.plugins) {
    words.insert(words.end(), {"--plugin", plugin});
  }
  return words;
}

RunData open_run_data(const Config& config) {
  RunData all;
  const auto tokenizer = open_run_tokenizer(config);
  all.shape = at_key(config, config.model.from.empty() ? "model" : "model.from",
                     [&] { return model_shape(config, tokenizer); });
  at_key(config, "data", [&] {
    const auto data = std::make_shared<Dataset>(config, all.shape.vocab, tokenizer);
    data->check_all();
    all.dataset = data;
  });
  return all;
}

TrainArguments with_steps(TrainArguments arguments, const Config& config, const Dataset& data) {
  if (config.train.epochs > 0) {
    arguments.overrides.emplace_back("train.epochs=0");
    arguments.overrides.push_back(fmt::format("train.steps={}", steps_of(config, data)));
  }
  return arguments;
}

Config config_with_steps(const TrainArguments& arguments, Config config, const Dataset& data) {
  if (config.train.epochs == 0) {
    return config;
  }
  // Its plugins are there already.
  return load_config(arguments.config, with_steps(arguments, config, data).overrides);
}

CheckedPlan planned(const Run& run) {
  try {
    return check_plan(run);
  } catch (const Error& error) {
    // Where no entry of [[parallel]] is named, it is one of all of them, or of the model.
    const char* const key = error.fields().thing == "mesh" ? "mesh.axes"
                            : run.config.parallel.empty()  ? "model"
                                                           : "parallel";
    return at_key(run.config, key, [&]() -> CheckedPlan { throw Error(error); });
  }
}

}  // namespace tessera::app
