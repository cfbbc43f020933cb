// SequenceParallel: a module that works on each token alone (a norm, dropout) runs on its own part
// of the sequence. Its parameters stay Replicate; their gradients are Partial and are summed at the
// end of the step.
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
  registrar.add<parallel::ParallelStyle>("SequenceParallel", [](parallel::Options& options) {
    return std::make_unique<WholeModule>(whole_options().read(options, {.desired = Shard(1)}));
  });
}
