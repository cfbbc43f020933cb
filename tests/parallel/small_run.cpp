#include <filesystem>
#include <memory>
#include <string>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.program;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.train;
import tessera.app.config;
import tessera.runs;

#include "small_run.hpp"

namespace runs = tessera::runs;
using namespace tessera::app;

namespace parallel_test {

std::vector<std::string> shipped_configs() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(TESSERA_SOURCE_FOLDER "/configs")) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".toml") && name != "pipeline.toml") {
      names.push_back(name);
    }
  }
  return names;
}

runs::Run small_run(const std::string& name, std::vector<std::string> overrides,
                    const std::vector<std::string>& sizes) {
  overrides.insert(overrides.end(), sizes.begin(), sizes.end());
  // A text that is not edited: of a page of docs, each edit would change every curve.
  for (const char* same :
       {"model.layers=2", "data.validation=0.0", "train.batch=8",
        "data.text=[\"" TESSERA_SOURCE_FOLDER "/tests/reference/data/optimizer_curves.json\"]"}) {
    overrides.emplace_back(same);
  }
  runs::Run run;
  run.config = load_config(std::string(TESSERA_SOURCE_FOLDER "/configs/") + name, overrides);
  run.task = runs::open_language_task(run.config);
  return run;
}

}  // namespace parallel_test
