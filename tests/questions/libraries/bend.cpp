// An operator, a style and an optimizer, each in two versions: with BISECT_WRONG_OPERATOR,
// BISECT_WRONG_STYLE or BISECT_WRONG_OPTIMIZER one of them computes something else.
#include <memory>
#include <span>
#include <string>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.nn;
import tessera.optim;
import tessera.options;
import tessera.parallel;

namespace {

using namespace tessera;

#ifdef BISECT_WRONG_OPERATOR
constexpr bool wrong_operator = true;
#else
constexpr bool wrong_operator = false;
#endif
#ifdef BISECT_WRONG_STYLE
constexpr double style_factor = 1.25;
#else
constexpr double style_factor = 1;
#endif
#ifdef BISECT_WRONG_OPTIMIZER
constexpr double decay_factor = 1.5;
#else
constexpr double decay_factor = 1;
#endif

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

/// The values; the wrong version changes the element with index 5.
void bend_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = operands::contiguous(call.in[0]);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    out[0].data<float>()[i] = x.data<float>()[i] + (wrong_operator && i == 5 ? 0.125F : 0.0F);
  }
}

void bend_backward(const BackwardContext&, std::span<const Tensor> grads, std::span<Tensor> out) {
  out[0] = grads[0];
}

Op bend() {
  return {.schema = "bend(x)",
          .infer = infer,
          .cpu = bend_cpu,
          .rule = rules::pointwise,
          .backward = bend_backward,
          .about = "The values."};
}

/// Calls the operator on what a module returns.
class Bend final : public parallel::ParallelStyle {
 public:
  explicit Bend(parallel::Options&) {}
  parallel::StyleFacts facts() const override { return {}; }
  void apply(const parallel::StyleTarget& target) override {
    target.module.add_hook([](nn::Module&, const Tensors&, Tensors& outputs) {
      outputs[0] = call_one(load_operator("bend"), {ops::mul_scalar(outputs[0], style_factor)});
    });
  }
};

/// Gradient descent with decay.
class Slope final : public optim::UpdateRule {
 public:
  explicit Slope(PluginOptions&) {}
  std::vector<optim::StateTensor> states() const override { return {}; }
  void update(const optim::UpdateGroup& group) override {
    ops::foreach_mul_(group.parameters, 1 - group.lr * 0.5 * decay_factor);
    ops::foreach_add_(group.parameters, group.gradients, -group.lr);
  }
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<OperatorPlugin>("bend", bend);
  registrar.add<parallel::ParallelStyle>(
      "Bend", [](parallel::Options& options) { return std::make_unique<Bend>(options); });
  registrar.add<optim::UpdateRule>(
      "slope", [](PluginOptions& options) { return std::make_unique<Slope>(options); });
}
