// PrepareModuleInput: brings a module's input to a placement once, before the layers inside use it:
// one all-gather (or, backward, one all-reduce) in front of q, k and v instead of three. Options:
// input = "Replicate", position = 0.
#include <cstddef>
#include <cstdint>
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

class PrepareModuleInput final : public ParallelStyle {
 public:
  explicit PrepareModuleInput(Options& options)
      : input_(options.optional_placement("input")),
        desired_(options.placement("desired", Replicate())),
        position_(options.integer("position", 0)) {
    if (position_ < 0) {
      fail_input("PrepareModuleInput: option 'position' must not be negative");
    }
  }

  StyleFacts facts() const override { return {}; }

  void apply(const StyleTarget& target) override {
    const auto position = static_cast<std::size_t>(position_);
    if (input_) {
      redistribute_input(target.module, position, target.axis, *input_);
    }
    redistribute_input(target.module, position, target.axis, desired_);
  }

 private:
  std::optional<Placement> input_;
  Placement desired_;
  std::int64_t position_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("PrepareModuleInput", [](Options& options) {
    return std::make_unique<PrepareModuleInput>(options);
  });
}
