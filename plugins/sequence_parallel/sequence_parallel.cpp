// SequenceParallel: a module that works on each token alone (a norm, dropout) runs on its own part
// of the sequence. Its parameters stay Replicate; their gradients are Partial and are summed at the
// end of the step. Options: input (the placement to which the input is redistributed first),
// desired = "Shard(1)", output (default: the value of desired).
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

class SequenceParallel final : public ParallelStyle {
 public:
  explicit SequenceParallel(Options& options)
      : input_(options.optional_placement("input")),
        desired_(options.placement("desired", Shard(1))),
        output_(options.placement("output", desired_)) {}

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
  registrar.add<ParallelStyle>("SequenceParallel", [](Options& options) {
    return std::make_unique<SequenceParallel>(options);
  });
}
