// ColwiseParallel: a layer split by columns: each rank computes some features of the output. A
// linear layer's weight is then Shard(0), an embedding's Shard(1). Options: input (the placement to
// which the input is redistributed first; then to what the layer's split needs), output (the
// placement of the output; default: as the layer returns it, Shard(-1)).
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

class ColwiseParallel final : public ParallelStyle {
 public:
  explicit ColwiseParallel(Options& options)
      : input_(options.optional_placement("input")),
        output_(options.optional_placement("output")) {}

  StyleFacts facts() const override {
    return {.places_parameters = true, .converts_values = true, .needs_split = "columns"};
  }

  void apply(const StyleTarget& target) override {
    const nn::LayerSplit split = target.split("columns");
    redistribute_around(target, input_, split, output_.value_or(split.output));
  }

 private:
  std::optional<Placement> input_;
  std::optional<Placement> output_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("ColwiseParallel", [](Options& options) {
    return std::make_unique<ColwiseParallel>(options);
  });
}
