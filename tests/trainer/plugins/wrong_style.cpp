// Styles with one fault each, for the tests of `tessera plugin check`.
#include <cstdlib>
#include <memory>

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

namespace {

using namespace tessera;
using namespace tessera::parallel;

/// Divides what a module returns by the number of ranks, as code that averages gradients might.
class Dividing final : public ParallelStyle {
 public:
  StyleFacts facts() const override { return {.splits_batch = true}; }
  void apply(const StyleTarget& target) override {
    target.module.add_hook([ranks = target.axis_size()](nn::Module&, const Tensors&, Tensors& out) {
      out[0] = ops::mul_scalar(out[0], 1.0 / ranks);
    });
  }
};

/// Places parameters and does not declare it.
class Silent final : public ParallelStyle {
 public:
  StyleFacts facts() const override { return {}; }
  void apply(const StyleTarget& target) override {
    for (const nn::ParameterPointer& parameter : nn::all_parameters(target.module)) {
      target.place(*parameter, Replicate());
    }
  }
};

class Crashing final : public ParallelStyle {
 public:
  StyleFacts facts() const override { std::abort(); }
  void apply(const StyleTarget&) override {}
};

/// Fits no module of a usual model.
class Picky final : public ParallelStyle {
 public:
  StyleFacts facts() const override { return {.needs_split = "experts"}; }
  void apply(const StyleTarget&) override {}
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("Dividing", [](Options&) { return std::make_unique<Dividing>(); });
  registrar.add<ParallelStyle>("Silent", [](Options&) { return std::make_unique<Silent>(); });
  registrar.add<ParallelStyle>("Crashing", [](Options&) { return std::make_unique<Crashing>(); });
  registrar.add<ParallelStyle>("Picky", [](Options&) { return std::make_unique<Picky>(); });
}
