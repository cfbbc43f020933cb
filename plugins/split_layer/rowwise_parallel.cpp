// RowwiseParallel: a layer split by rows: each rank computes one term of the output, and the terms
// are summed when the output is redistributed. A linear layer's weight is then Shard(1), an
// embedding's Shard(0).
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
  registrar.add<parallel::ParallelStyle>("RowwiseParallel", [](parallel::Options& options) {
    const auto table = split_options(
        "A placement to which the input is redistributed first; then Shard(-1), or "
        "Replicate for an Embedding and experts.",
        "The placement of the result: `Replicate` is an all-reduce, `Shard(1)` a "
        "reduce-scatter.");
    return std::make_unique<SplitLayer>("rows", table.read(options, {.output = Replicate()}));
  });
}
