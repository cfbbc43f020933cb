// One function for each sub-command; each lives in the file of its name. They throw Error.
#pragma once
#include <string>
#include <vector>

namespace tessera::app {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;  // key=value
  std::vector<std::string> plugins;    // files or folders, besides plugins.paths
  bool dry_run = false;
};
int run_train(const TrainArguments& arguments);

int run_doctor();

/// `tessera keys`: the reference of the config, as docs/config.md has it.
int run_keys();

}  // namespace tessera::app
