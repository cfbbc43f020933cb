// An optimizer with three faults, for the tests of `tessera plugin check`: it ignores grad_scale,
// decays without the learning rate, and keeps a momentum that it does not declare.
#include <cstddef>
#include <memory>
#include <vector>

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.optim;
import tessera.options;
import tessera.plugin;

namespace {

using namespace tessera;

class Faulty final : public optim::UpdateRule {
 public:
  std::vector<optim::StateTensor> states() const override { return {}; }
  void update(const optim::UpdateGroup& group) override {
    momentum_.resize(group.parameters.size());
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      momentum_[i] = momentum_[i] ? ops::add(ops::mul_scalar(momentum_[i], 0.5), group.gradients[i])
                                  : group.gradients[i];
      ops::mul_scalar_(group.parameters[i], 1 - 0.01 * group.weight_decay);
      ops::add_(group.parameters[i], momentum_[i], -group.lr);
    }
  }

 private:
  std::vector<Tensor> momentum_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<optim::UpdateRule>("Faulty",
                                   [](PluginOptions&) { return std::make_unique<Faulty>(); });
}
