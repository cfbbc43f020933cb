// NoParallel: every rank of the axis computes the whole module, while other modules are split. Its
// parameters, inputs and outputs are Replicate.
#include <memory>
#include <optional>

import tessera.base;
import tessera.options;
import tessera.placement;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "whole_module.hpp"

void register_plugin(tessera::plugin::Registrar& registrar) {
  using namespace tessera;
  registrar.add<parallel::ParallelStyle>("NoParallel", [](parallel::Options& options) {
    return std::make_unique<WholeModule>(whole_options().read(options, {.output = Replicate()}));
  });
}
