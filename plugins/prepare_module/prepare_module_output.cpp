// PrepareModuleOutput: redistributes outputs of a module for the modules that use them.
#include <memory>
#include <utility>
#include <vector>

import tessera.base;
import tessera.options;
import tessera.placement;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "prepare_module.hpp"

void register_plugin(tessera::plugin::Registrar& registrar) {
  using namespace tessera;
  registrar.add<parallel::ParallelStyle>("PrepareModuleOutput", [](parallel::Options& options) {
    return std::make_unique<PrepareModule>(
        with_outputs("desired").read(options, {.desired_output = replicate_first()}));
  });
}
