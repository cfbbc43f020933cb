// RowwiseParallel: a layer split by rows: each rank computes one term of the output, and the terms
// are summed when the output is redistributed. A linear layer's weight is then Shard(1), an
// embedding's Shard(0). Options: input (the placement to which the input is redistributed first;
// then to what the layer's split needs), output = "Replicate".
#include <memory>
#include <optional>

import tessera.base;
import tessera.placement;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

namespace {

using namespace tessera;
using namespace tessera::parallel;

class RowwiseParallel final : public ParallelStyle {
 public:
  explicit RowwiseParallel(Options& options)
      : input_(options.optional_placement("input")),
        output_(options.placement("output", Replicate())) {}

  StyleFacts facts() const override {
    return {.places_parameters = true, .converts_values = true, .needs_split = "rows"};
  }

  void apply(const StyleTarget& target) override {
    const nn::LayerSplit split = target.split("rows");
    redistribute_around(target, input_, split, output_);
  }

 private:
  std::optional<Placement> input_;
  Placement output_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("RowwiseParallel", [](Options& options) {
    return std::make_unique<RowwiseParallel>(options);
  });
}
