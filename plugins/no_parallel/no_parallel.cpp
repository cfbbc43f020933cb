// NoParallel: every rank of the axis computes the whole module, while other modules are split. Its
// parameters, inputs and outputs are Replicate. Options: input (the placement to which
// the first input is redistributed first), desired = "Replicate", output = "Replicate" (the
// placement of the first output).
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

class NoParallel final : public ParallelStyle {
 public:
  explicit NoParallel(Options& options)
      : input_(options.optional_placement("input")),
        desired_(options.placement("desired", Replicate())),
        output_(options.placement("output", Replicate())) {}

  StyleFacts facts() const override { return {.places_parameters = true, .converts_values = true}; }

  void apply(const StyleTarget& target) override {
    for (const nn::ParameterPointer& parameter : nn::all_parameters(target.module)) {
      target.place(*parameter, Replicate());
    }
    redistribute_around(target, input_, desired_, output_);
  }

 private:
  std::optional<Placement> input_;
  Placement desired_;
  Placement output_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>(
      "NoParallel", [](Options& options) { return std::make_unique<NoParallel>(options); });
}
