// PrepareModuleInputOutput: PrepareModuleInput and PrepareModuleOutput in one entry. Options, each
// a placement, a list by position or a table by name: input, desired_input = "Replicate", output,
// desired_output = "Replicate".
#include <memory>

import tessera.base;
import tessera.placement;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

namespace {

using namespace tessera;
using namespace tessera::parallel;

class PrepareModuleInputOutput final : public ParallelStyle {
 public:
  explicit PrepareModuleInputOutput(Options& options)
      : input_(options.placements("input")),
        desired_input_(options.placements("desired_input", Replicate())),
        output_(options.placements("output")),
        desired_output_(options.placements("desired_output", Replicate())) {}

  StyleFacts facts() const override { return {.converts_values = true, .repeatable = true}; }

  void apply(const StyleTarget& target) override {
    redistribute_inputs(target.module, input_, target.axis);
    redistribute_inputs(target.module, desired_input_, target.axis);
    redistribute_outputs(target.module, output_, target.axis);
    redistribute_outputs(target.module, desired_output_, target.axis);
  }

 private:
  ValuePlacements input_;
  ValuePlacements desired_input_;
  ValuePlacements output_;
  ValuePlacements desired_output_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("PrepareModuleInputOutput", [](Options& options) {
    return std::make_unique<PrepareModuleInputOutput>(options);
  });
}
