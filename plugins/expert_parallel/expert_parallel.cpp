// ExpertParallel: each rank of the axis holds some experts of a mixture, and works on its own part
// of the batch; the layer sends each token to the ranks that have its experts. Everything else is
// as with Replicate: other parameters are on every rank, and their gradients are Partial. The layer
// declares the split "experts": dim 0 of each parameter in it counts the experts.
#include <fmt/format.h>

#include <cstdint>
#include <memory>

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

namespace {

using namespace tessera;
using namespace tessera::parallel;

class ExpertParallel final : public ParallelStyle {
 public:
  StyleFacts facts() const override {
    return {.splits_batch = true, .places_parameters = true, .needs_split = "experts"};
  }

  void apply(const StyleTarget& target) override {
    const nn::LayerSplit split = target.split("experts");
    for (const nn::LayerSplit::ParameterPlacement& placed : split.parameters) {
      const std::int64_t experts = placed.parameter->value.size(0);
      if (experts % target.axis_size() != 0) {
        fail_input({.thing = fmt::format("module '{}'", target.module.name()),
                    .wrong = fmt::format("its {} experts cannot be split over {} ranks", experts,
                                         target.axis_size()),
                    .advice = fmt::format("choose a size of mesh axis '{}' that divides {}",
                                          target.mesh.axis_name(target.axis), experts)});
      }
    }
  }
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("ExpertParallel",
                               [](Options&) { return std::make_unique<ExpertParallel>(); });
}
