// PrepareModuleInputOutput: PrepareModuleInput and PrepareModuleOutput in one entry. Options, each
// a placement, a list by position or a table by name: input, desired_input = "Replicate", output,
// desired_output = "Replicate".
#include <memory>
#include <vector>

import tessera.base;
import tessera.placement;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "prepare_module.hpp"

void register_plugin(tessera::plugin::Registrar& registrar) {
  using namespace tessera;
  registrar.add<parallel::ParallelStyle>(
      "PrepareModuleInputOutput", [](parallel::Options& options) {
        constexpr PreparedNames inputs{"input", "desired_input"};
        constexpr PreparedNames outputs{"output", "desired_output"};
        return std::make_unique<PrepareModule>(options, &inputs, &outputs);
      });
}
