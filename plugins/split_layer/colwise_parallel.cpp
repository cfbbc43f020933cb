// ColwiseParallel: a layer split by columns: each rank computes some features of the output. A
// linear layer's weight is then Shard(0), an embedding's Shard(1). Options: input (the placement to
// which the input is redistributed first; then to what the layer's split needs), output (the
// placement of the output; default: as the layer returns it, Shard(-1)).
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
  registrar.add<parallel::ParallelStyle>("ColwiseParallel", [](parallel::Options& options) {
    return std::make_unique<SplitLayer>(options, "columns", std::nullopt);
  });
}
