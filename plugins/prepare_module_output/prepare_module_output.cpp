// PrepareModuleOutput: redistributes outputs of a module for the modules that use them. Options,
// each a placement, a list by position or a table by name: output (the placements to which the
// outputs are redistributed first), desired = "Replicate".
#include <memory>

import tessera.base;
import tessera.placement;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

namespace {

using namespace tessera;
using namespace tessera::parallel;

class PrepareModuleOutput final : public ParallelStyle {
 public:
  explicit PrepareModuleOutput(Options& options)
      : output_(options.placements("output")),
        desired_(options.placements("desired", Replicate())) {}

  StyleFacts facts() const override { return {.converts_values = true, .repeatable = true}; }

  void apply(const StyleTarget& target) override {
    redistribute_outputs(target.module, output_, target.axis);
    redistribute_outputs(target.module, desired_, target.axis);
  }

 private:
  ValuePlacements output_;
  ValuePlacements desired_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("PrepareModuleOutput", [](Options& options) {
    return std::make_unique<PrepareModuleOutput>(options);
  });
}
