// ColwiseParallel: a layer split by columns: each rank computes some features of the output. A
// linear layer's weight is then Shard(0), an embedding's Shard(1).
#include <memory>
#include <optional>
#include <string>
#include <utility>

import tessera.base;
import tessera.options;
import tessera.placement;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "split_layer.hpp"

void register_plugin(tessera::plugin::Registrar& registrar) {
  using namespace tessera;
  registrar.add<parallel::ParallelStyle>("ColwiseParallel", [](parallel::Options& options) {
    const auto table = split_options(
        "A placement to which the input is redistributed first; it is then "
        "redistributed to what the layer needs (Replicate) in any case.",
        "The placement of the result; without it, as the layer returns it: "
        "`Shard(-1)`.");
    return std::make_unique<SplitLayer>("columns", table.read(options));
  });
}
