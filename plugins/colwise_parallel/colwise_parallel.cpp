// ColwiseParallel: a linear layer split by its outputs (weight Shard(0)), an embedding by its
// columns (Shard(1)). Options: input (the placement to which the input is redistributed first;
// then Replicate), output = "Shard(-1)" (the placement of the output).
#include <fmt/format.h>

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
        output_(options.placement("output", Shard(-1))) {}

  StyleFacts facts() const override { return {}; }

  void apply(const StyleTarget& target) override {
    nn::Module& module = target.module;
    if (module.kind() != "Linear" && module.kind() != "Embedding") {
      fail_input(fmt::format(
          "ColwiseParallel: module '{}' is a {}; only Linear and Embedding can be split by columns",
          module.name(), module.kind()));
    }
    const bool linear = module.kind() == "Linear";
    for (const auto& [name, parameter] : module.parameters()) {
      target.place(*parameter, Shard(linear ? 0 : 1));
    }
    redistribute_around(target, input_, Replicate(), output_);
  }

 private:
  std::optional<Placement> input_;
  Placement output_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("ColwiseParallel", [](Options& options) {
    return std::make_unique<ColwiseParallel>(options);
  });
}
