// PrepareModuleInput: redistributes inputs of a module once, before the layers inside use them: one
// all-gather (or, in backward, one all-reduce) before q, k and v instead of three. Options, each a
// placement, a list by position or a table by name: input (the placements to which the inputs are
// redistributed first), desired = "Replicate".
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
  registrar.add<parallel::ParallelStyle>("PrepareModuleInput", [](parallel::Options& options) {
    constexpr PreparedNames inputs{"input", "desired"};
    return std::make_unique<PrepareModule>(options, &inputs, nullptr);
  });
}
