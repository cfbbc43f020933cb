// NoParallel: every rank of the axis computes the whole module, while other modules are split. Its
// parameters, inputs and outputs are Replicate. Options: input (the placement to which
// the first input is redistributed first), desired = "Replicate", output = "Replicate" (the
// placement of the first output).
#include <memory>
#include <optional>

import tessera.base;
import tessera.placement;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "whole_module.hpp"

void register_plugin(tessera::plugin::Registrar& registrar) {
  using namespace tessera;
  registrar.add<parallel::ParallelStyle>("NoParallel", [](parallel::Options& options) {
    return std::make_unique<WholeModule>(options, Replicate(), Replicate());
  });
}
