// PrepareModuleInputOutput: PrepareModuleInput and PrepareModuleOutput in one entry.
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
  registrar.add<parallel::ParallelStyle>(
      "PrepareModuleInputOutput", [](parallel::Options& options) {
        const auto table = with_outputs("desired_output", with_inputs("desired_input"));
        return std::make_unique<PrepareModule>(table.read(
            options, {.desired_input = replicate_first(), .desired_output = replicate_first()}));
      });
}
