// PrepareModuleInput: redistributes inputs of a module once, before the layers inside use them: one
// all-gather (or, in backward, one all-reduce) before q, k and v instead of three. Options, each a
// placement, a list by position or a table by name: input (the placements to which the inputs are
// redistributed first), desired = "Replicate".
#include <memory>

import tessera.base;
import tessera.placement;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

namespace {

using namespace tessera;
using namespace tessera::parallel;

class PrepareModuleInput final : public ParallelStyle {
 public:
  explicit PrepareModuleInput(Options& options)
      : input_(options.placements("input")), desired_(options.placements("desired", Replicate())) {}

  StyleFacts facts() const override { return {.converts_values = true, .repeatable = true}; }

  void apply(const StyleTarget& target) override {
    redistribute_inputs(target.module, input_, target.axis);
    redistribute_inputs(target.module, desired_, target.axis);
  }

 private:
  ValuePlacements input_;
  ValuePlacements desired_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("PrepareModuleInput", [](Options& options) {
    return std::make_unique<PrepareModuleInput>(options);
  });
}
