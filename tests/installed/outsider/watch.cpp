// A style that knows Tessera only by its installed package. Its hook must see the inputs of a
// module before any conversion; it says so, and names no other style.
#include <memory>

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

namespace {

namespace parallel = tessera::parallel;

class Watch final : public parallel::ParallelStyle {
 public:
  explicit Watch(parallel::Options& options)
      : expected_(options.placement("expected", tessera::Replicate())) {}
  parallel::StyleFacts facts() const override { return {.wraps_forward = true}; }
  void apply(const parallel::StyleTarget& target) override {
    target.module.add_outer_pre_hook([expected = expected_, axis = target.axis](
                                         tessera::nn::Module& module, tessera::Tensors& inputs) {
      if (!(inputs[0].layout().placement(axis) == expected)) {
        tessera::fail_input("Watch: module '" + module.name() + "' receives " +
                            to_string(*inputs[0].spec()));
      }
    });
  }

 private:
  tessera::Placement expected_;
};

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<parallel::ParallelStyle>(
      "Watch", [](parallel::Options& options) { return std::make_unique<Watch>(options); });
}
