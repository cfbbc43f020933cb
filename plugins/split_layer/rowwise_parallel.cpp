// RowwiseParallel: a layer split by rows: each rank computes one term of the output, and the terms
// are summed when the output is redistributed. A linear layer's weight is then Shard(1), an
// embedding's Shard(0). Options: input (the placement to which the input is redistributed first;
// then to what the layer's split needs), output = "Replicate".
#include <memory>
#include <optional>
#include <string>
#include <utility>

import tessera.base;
import tessera.placement;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "split_layer.hpp"

void register_plugin(tessera::plugin::Registrar& registrar) {
  using namespace tessera;
  registrar.add<parallel::ParallelStyle>("RowwiseParallel", [](parallel::Options& options) {
    return std::make_unique<SplitLayer>(options, "rows", Replicate());
  });
}
