// LossParallel: the loss of logits whose vocabulary is sharded along the axis, without gathering
// them. The ranks all-reduce three numbers per token; backward communicates nothing. The layer that
// computes the logits must leave them sharded: ColwiseParallel on "lm_head" with its default
// output. No options.
#include <fmt/format.h>

#include <cstddef>
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

class LossParallel final : public ParallelStyle {
 public:
  StyleFacts facts() const override { return {.converts_values = true, .needs_split = "classes"}; }

  void apply(const StyleTarget& target) override {
    const nn::LayerSplit split = target.split("classes");
    target.module.add_pre_hook([axis = target.axis](nn::Module&, Tensors& inputs) {
      if (!inputs[0]) {
        return;  // forward reports the missing input
      }
      const Layout& logits = inputs[0].layout();
      if (!logits.placement(axis).is_shard(inputs[0].dims() - 1)) {
        fail_input({.thing = "LossParallel",
                    .wrong = fmt::format("the logits have the wrong placement on axis '{}'",
                                         logits.mesh().axis_name(axis)),
                    .expected = fmt::format("Shard({}), the vocabulary", inputs[0].dims() - 1),
                    .got = to_string(logits.placement(axis)),
                    .advice = "use ColwiseParallel with output = \"Shard(-1)\" on 'lm_head'"});
      }
    });
    for (std::size_t i = 1; i < split.inputs.size(); ++i) {
      redistribute_input(target.module, i, target.axis, split.inputs[i]);
    }
  }
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("LossParallel",
                               [](Options&) { return std::make_unique<LossParallel>(); });
}
