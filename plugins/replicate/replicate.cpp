// Replicate: every rank of the axis holds all parameters and works on its own part of the batch.
// The gradients are then Partial along the axis. One all-reduce at the end of the step sums them.
#include <memory>

import tessera.base;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

namespace {

using namespace tessera;
using namespace tessera::parallel;

class ReplicateStyle final : public ParallelStyle {
 public:
  StyleFacts facts() const override {
    return {.splits_batch = true, .follows_virtual_shards = true};
  }
  void apply(const StyleTarget&) override {}
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("Replicate",
                               [](Options&) { return std::make_unique<ReplicateStyle>(); });
}
