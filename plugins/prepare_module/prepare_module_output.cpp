// PrepareModuleOutput: redistributes outputs of a module for the modules that use them. Options,
// each a placement, a list by position or a table by name: output (the placements to which the
// outputs are redistributed first), desired = "Replicate".
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
  registrar.add<parallel::ParallelStyle>("PrepareModuleOutput", [](parallel::Options& options) {
    constexpr PreparedNames outputs{"output", "desired"};
    return std::make_unique<PrepareModule>(options, nullptr, &outputs);
  });
}
