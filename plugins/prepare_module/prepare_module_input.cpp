// PrepareModuleInput: redistributes inputs of a module once, before the layers inside use them: one
// all-gather (or, in backward, one all-reduce) before q, k and v instead of three.
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
  registrar.add<parallel::ParallelStyle>("PrepareModuleInput", [](parallel::Options& options) {
    return std::make_unique<PrepareModule>(
        with_inputs("desired").read(options, {.desired_input = replicate_first()}));
  });
}
